"""What is to be sent on of what comes, and whether there is room for it to wait."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager

import zstandard

from ...core.errors import StagelensError
from ...core.settings.values import format_size
from ...store.outgoing import Backlog, Outgoing
from ..ingest.writer import UncommittedError
from .config import Destination

# One that was sent on by so many goes round in a circle none of them knows.
_MAX_HOPS = 8
_VIA = re.compile(r"[0-9a-f]{16}(,[0-9a-f]{16})*")
# A quarter of the store is room for all destinations: the numbers need the rest.
_SHARE = 4


class LoopError(StagelensError):
    """A body that was sent on from here has come back."""


class ForwardQueue:
    """The room in which bodies wait for their destinations. Thread-safe.

    Args:
        destinations: Whom to send to; asked for every body, so that it may change.
        identity: What the store calls itself.
        budget_bytes: How large the store may be; None for as large as it gets.
    """

    def __init__(
        self, destinations: Callable[[], Sequence[Destination]], identity: str, budget_bytes: int | None
    ) -> None:
        self._destinations, self.identity, self._budget_bytes = destinations, identity, budget_bytes
        self._lock = threading.Lock()
        # What waits by destination; what of it is being written; what of it the store may not have known when it was asked.
        self._waiting, self._unwritten, self._unseen = Counter[str](), Counter[str](), Counter[str]()

    def pack(self, signal: str, media_type: str, body: bytes, via: str) -> list[Outgoing]:
        """Return what is to be sent on of an inflated *body* of *signal* that has come *via* others."""
        takers = [each.name for each in self._destinations() if signal in each.signals]
        if not takers:
            return []
        packed = zstandard.ZstdCompressor(level=1).compress(body)
        return [Outgoing(name, signal, media_type, packed, via) for name in takers]

    def check_via(self, via: str) -> str:
        """Return whom a body has passed, of a header that says so; nothing where it makes no sense.

        Raises:
            LoopError: It has been here, or has no end.
        """
        if not _VIA.fullmatch(via):
            return ""
        hops = via.split(",")
        if self.identity in hops or len(hops) >= _MAX_HOPS:
            msg = "this body was sent on from here and has come back; one of the forward: sections on its way is to change"
            raise LoopError(msg)
        return via

    @contextmanager
    def admitted(self, bodies: Sequence[Outgoing]) -> Generator[None]:
        """Have room for *bodies*, which are written within.

        Raises:
            UncommittedError: Too much waits for one of their destinations, which is not to lose anything.
        """
        if not bodies:
            yield
            return
        sizes = {body.destination: len(body.body) for body in bodies}
        known = {each.name: each for each in self._destinations()}
        with self._lock:
            for name, size in sizes.items():
                destination, waiting = known.get(name), self._waiting[name]
                if destination is None or destination.when_full == "drop_oldest":
                    continue
                if waiting and waiting + size > self.most_bytes(destination):
                    msg = f"{format_size(waiting)} wait to be sent on to {name}, which does not take them"
                    raise UncommittedError(msg)
            for counts in (self._waiting, self._unwritten, self._unseen):
                counts.update(sizes)
        try:
            yield
        finally:
            with self._lock:
                self._unwritten.subtract(sizes)

    def most_bytes(self, destination: Destination) -> int:
        """Return how much may wait for *destination*."""
        if self._budget_bytes is None:
            return destination.most_waiting_bytes
        return min(destination.most_waiting_bytes, self._budget_bytes // _SHARE // max(len(self._destinations()), 1))

    def freed(self, name: str, size_bytes: int) -> None:
        """Note that so many bytes no longer wait for destination *name*."""
        with self._lock:
            self._waiting[name] = max(self._waiting[name] - size_bytes, 0)

    def begin_look(self) -> None:
        """Note that somebody begins to ask the store for all that waits: it may not have what comes from now on."""
        with self._lock:
            self._unseen = Counter(self._unwritten)

    def look(self, backlogs: Mapping[str, Backlog]) -> None:
        """Note what the store has said of all that waits."""
        with self._lock:
            self._waiting = self._unseen + Counter({name: backlog.size_bytes for name, backlog in backlogs.items()})
