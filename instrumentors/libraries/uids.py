"""Workers that tell what they did for a request in the answer itself: its uid is one like any other, with a run on it.

So nothing else in a message changes, whatever its class, and it is found under its uid as before. Who waits for an answer
keeps its ticket here, as long as its request lives.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID
from weakref import WeakValueDictionary

from ..instrumentor import report
from ..tickets import Run, Ticket


class TextUid(str):
    """A uid that is a text."""

    __slots__ = ("run",)
    run: Run

    def __reduce__(self) -> tuple[Any, ...]:
        """Take the run along."""
        return with_run, (str(self), self.run)


class UuidUid(UUID):
    """A uid that is a UUID; no text is equal to one."""

    __slots__ = ("run",)
    run: Run

    def __reduce__(self) -> tuple[Any, ...]:
        """Take the run along."""
        return with_run, (UUID(int=self.int), self.run)


def with_run(uid: Any, run: Run) -> Any:
    """Return what is equal to *uid* and has *run* on it; of another type than those above *uid* itself."""
    if type(uid) is str:
        carrier = TextUid(uid)
    elif type(uid) is UUID:
        carrier = UuidUid(int=uid.int)
    else:
        return uid
    # As UUID sets its own.
    object.__setattr__(carrier, "run", run)
    return carrier


class Waiting:
    """The tickets of those who wait for an answer of *library*."""

    def __init__(self, library: str) -> None:
        self._library = library
        self._tickets: WeakValueDictionary[Any, Ticket] = WeakValueDictionary()

    def add(self, uid: Any, ticket: Ticket) -> None:
        """Note whose answer will have *uid*; never raises."""
        try:
            self._tickets[uid] = ticket
        except Exception:
            report(f"noting who waits for {self._library}")

    def get(self, uid: Any) -> Ticket | None:
        """Return the ticket of *uid*, None where nobody waits any more."""
        return self._tickets.get(uid)

    def answered(self, uid: Any) -> None:
        """Tell the ticket of *uid* of the run that the answer brought, if it did; never raises."""
        try:
            if isinstance(uid, (TextUid, UuidUid)):
                drawn = self._tickets.pop(uid, None)
                if drawn is not None:
                    drawn.done(uid.run)
        except Exception:
            report(f"learning what a worker of {self._library} did for a request")
