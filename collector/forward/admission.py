"""Admission of bodies to the forwarding queue: selects the destinations of a body, and checks the capacity of their backlog."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager

import zstandard

from ...core.errors import StagelensError
from ...core.settings.values import format_size
from ...store.collectors import Backlog, Outgoing
from ..ingest.writer import UncommittedError
from .config import Destination

# Number of passed collectors from which a body is treated as being in a loop.
_MAX_HOPS = 8
_VIA = re.compile(r"[0-9a-f]{16}(,[0-9a-f]{16})*")
# Divisor of the storage budget: all destinations together may use a quarter of the store.
_SHARE = 4


class LoopError(StagelensError):
    """A forwarded body was received again, or has passed too many collectors."""


class ForwardQueue:
    """Capacity of the backlog of all destinations. Thread-safe.

    Args:
        destinations: Function that returns the current destinations; called for every body.
        budget_bytes: Size limit of the store; None for no limit.
    """

    def __init__(
        self, destinations: Callable[[], Sequence[Destination]], identity: str, budget_bytes: int | None
    ) -> None:
        self._destinations, self.identity, self._budget_bytes = destinations, identity, budget_bytes
        self._lock = threading.Lock()
        # Bytes by destination: backlog, bodies that are being written, and bodies that the last backlog query may have missed.
        self._waiting, self._unwritten, self._unseen = Counter[str](), Counter[str](), Counter[str]()

    def pack(self, signal: str, media_type: str, body: bytes, via: str) -> list[Outgoing]:
        """Return the inflated *body*, compressed, once for each destination of *signal*; *via* lists the collectors it has passed."""
        takers = [each.name for each in self._destinations() if signal in each.signals]
        if not takers:
            return []
        packed = zstandard.ZstdCompressor(level=1).compress(body)
        return [Outgoing(name, signal, media_type, packed, via) for name in takers]

    def check_via(self, via: str) -> str:
        """Return the header *via*, which lists the collectors that a body has passed, or "" if the header is invalid.

        Raises:
            LoopError: This store has forwarded the body before, or the body has passed too many collectors.
        """
        if not _VIA.fullmatch(via):
            return ""
        hops = via.split(",")
        if self.identity in hops or len(hops) >= _MAX_HOPS:
            msg = "forwarding loop: this collector has already forwarded this body; fix a forward: section on the route"
            raise LoopError(msg)
        return via

    @contextmanager
    def admitted(self, bodies: Sequence[Outgoing]) -> Generator[None]:
        """Reserve capacity for *bodies*, which are written within the block.

        Raises:
            UncommittedError: The backlog of a destination with `when_full: refuse` is full.
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
                    msg = f"{format_size(waiting)} wait for delivery to {name}, which does not accept them"
                    raise UncommittedError(msg)
            for counts in (self._waiting, self._unwritten, self._unseen):
                counts.update(sizes)
        try:
            yield
        finally:
            with self._lock:
                self._unwritten.subtract(sizes)

    def most_bytes(self, destination: Destination) -> int:
        if self._budget_bytes is None:
            return destination.most_waiting
        return min(destination.most_waiting, self._budget_bytes // _SHARE // max(len(self._destinations()), 1))

    def freed(self, name: str, size_bytes: int) -> None:
        with self._lock:
            self._waiting[name] = max(self._waiting[name] - size_bytes, 0)

    def begin_backlog_query(self) -> None:
        with self._lock:
            self._unseen = Counter(self._unwritten)

    def set_backlogs(self, backlogs: Mapping[str, Backlog]) -> None:
        with self._lock:
            self._waiting = self._unseen + Counter({name: backlog.size_bytes for name, backlog in backlogs.items()})
