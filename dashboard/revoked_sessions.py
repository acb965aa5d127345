"""Revoked sessions: after sign-out every dashboard of the store rejects the session cookie, and any copy of it."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from threading import Lock

from sqlalchemy.exc import SQLAlchemyError

from ..alerts import lease
from ..core.errors import StoreError
from ..store import Store
from .sessions import LENGTH_SECONDS

_PREFIX = "signed-out:"
# Maximum delay until a sign-out at another dashboard takes effect here. [seconds]
_FRESH_SECONDS = 10.0

_log = logging.getLogger(__name__)


class SignedOut:
    """Revoked session cookies, kept in the store until they would have expired. Thread-safe.

    Args:
        store: The store.
        clock: The current time. [Unix seconds]
    """

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        self._store, self._clock = store, clock
        self._lock = Lock()
        self._known: set[str] = set()
        self._read_at = float("-inf")

    def add(self, cookie: str) -> None:
        """Revoke *cookie*; if the store cannot be written, only in this process."""
        name, now = _name(cookie), self._clock()
        with self._lock:
            self._known.add(name)
        try:
            with self._store.transaction() as connection:
                lease.hold(connection, name, lease.new_holder(), now, LENGTH_SECONDS)
                lease.forget(connection, _PREFIX, now)
        except (StoreError, SQLAlchemyError):
            _log.warning("dashboard: the store cannot be written, so a sign-out holds only until this process ends")

    def __contains__(self, cookie: str) -> bool:
        """Return whether *cookie* is revoked."""
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
            # Known revocations stay in force; the page itself reports the error of the store.
            pass


def _name(cookie: str) -> str:
    # The name of a lease has at most 64 characters (alerts/schema.py).
    return _PREFIX + hashlib.sha256(cookie.encode()).hexdigest()[:48]
