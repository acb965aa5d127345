"""Sessions that were signed out before their time: whoever has a copy of the cookie is let in no more, by any dashboard of the store."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from threading import Lock

from sqlalchemy.exc import SQLAlchemyError

from ..alerts import lease
from ..collector.store import Store
from ..core.errors import StoreError
from .sessions import LENGTH_SECONDS

_PREFIX = "signed-out:"
# What another dashboard of the same store was told shows here so much later.
_FRESH_SECONDS = 10.0

_log = logging.getLogger(__name__)


class SignedOut:
    """Remembers them as long as they would have lasted, in the store. Thread-safe.

    Args:
        store: Where.
        clock: Unix seconds.
    """

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        self._store, self._clock = store, clock
        self._lock = Lock()
        self._known: set[str] = set()
        self._read_at = float("-inf")

    def add(self, cookie: str) -> None:
        """Sign *cookie* out; where the store cannot be written, until the end of this process."""
        name, now = _name(cookie), self._clock()
        with self._lock:
            self._known.add(name)
        try:
            with self._store.transaction() as connection:
                lease.hold(connection, name, lease.new_holder(), now, LENGTH_SECONDS)
                lease.forget(connection, _PREFIX, now)
        except (StoreError, SQLAlchemyError):
            _log.warning("who signed out is signed out until this dashboard ends only: the store cannot be written")

    def __contains__(self, cookie: str) -> bool:
        """Say whether *cookie* was signed out."""
        with self._lock:
            now = self._clock()
            if now - self._read_at >= _FRESH_SECONDS:
                self._read_at = now
                self._read(now)
            return _name(cookie) in self._known

    def _read(self, now: float) -> None:
        try:
            with self._store.engine.connect() as connection:
                self._known |= lease.held(connection, _PREFIX, now)
        except (StoreError, SQLAlchemyError):
            # What is known stays so; whoever asks for a page hears what is wrong with the store.
            pass


def _name(cookie: str) -> str:
    return _PREFIX + hashlib.sha256(cookie.encode()).hexdigest()
