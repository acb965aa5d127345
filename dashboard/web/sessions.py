"""Signed session cookies, CSRF tokens and revoked sessions.

Sessions are not stored on the server: the cookie contains name and expiry, signed with a key derived from the secret used at
sign-in. A session ends at its expiry, or when the secret changes. After sign-out every dashboard of the store rejects the cookie.

The signature is hexadecimal and has only one valid form. A signature of itsdangerous has several (spare bits and padding
of base64), so that an altered copy of a revoked cookie would be accepted.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from threading import Lock

from sqlalchemy.exc import SQLAlchemyError

from ...alerts import lease
from ...core.errors import StoreError
from ...store import Store

_PREFIX = "signed-out:"
# Maximum delay until a sign-out at another dashboard takes effect here. [seconds]
_FRESH_SECONDS = 10.0
_log = logging.getLogger(__name__)
LENGTH_SECONDS = 30 * 86_400


def session_of(name: str, secret: str, now: float) -> str:
    """Return the session cookie of *name*, signed with *secret* and valid from *now* on [Unix seconds]."""
    until = str(int(now) + LENGTH_SECONDS)
    encoded_name = urlsafe_b64encode(name.encode()).decode()
    # Without this random part, two sessions of the same second would be equal, and would be revoked together.
    which = secrets.token_hex(8)
    return f"{encoded_name}.{until}.{which}.{_signed(secret, 'session', encoded_name, until, which)}"


def name_in(cookie: str) -> str | None:
    """Return the unverified name in *cookie*, to find the secret for its signature."""
    try:
        return urlsafe_b64decode(cookie.partition(".")[0].encode()).decode() if cookie.count(".") == 3 else None  # noqa: PLR2004 - the four parts of `session_of`
    except ValueError:
        return None


def is_session(cookie: str, secret: str, now: float) -> bool:
    """Return whether *cookie* is signed with *secret* and not expired at *now*."""
    encoded_name, until, which, signature = cookie.split(".")
    genuine = hmac.compare_digest(signature.encode(), _signed(secret, "session", encoded_name, until, which).encode())
    return genuine and until.isdigit() and int(until) > now


class CsrfTokens:
    """CSRF tokens of pages, each bound to one reader."""

    def __init__(self) -> None:
        self._key = secrets.token_hex(32)

    def token(self, bound_to: str) -> str:
        """Return the CSRF token bound to *bound_to*, the session or the name of a reader."""
        return _signed(self._key, "write", bound_to)

    def accepts(self, token: str, bound_to: str) -> bool:
        """Return whether *token* is the CSRF token of the reader bound to *bound_to*."""
        return hmac.compare_digest(token.encode(), self.token(bound_to).encode())


def _signed(secret: str, *parts: str) -> str:
    return hmac.new(secret.encode(), "\n".join(parts).encode(), hashlib.sha256).hexdigest()


class RevokedSessions:
    """Revoked session cookies, stored until their expiry. Thread-safe.

    Args:
        store: Store of the revocations, shared by all dashboards.
        clock: Function that returns the current time. [Unix seconds]
    """

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        self._store, self._clock = store, clock
        self._lock = Lock()
        self._known: set[str] = set()
        self._read_at = float("-inf")

    def add(self, cookie: str) -> None:
        """Revoke *cookie*; if the store cannot be written, the revocation is known to this process only."""
        name, now = _name(cookie), self._clock()
        with self._lock:
            self._known.add(name)
        try:
            with self._store.transaction() as connection:
                lease.hold(connection, name, lease.new_holder(), now, LENGTH_SECONDS)
                lease.forget(connection, _PREFIX, now)
        except (StoreError, SQLAlchemyError):
            _log.warning("dashboard: the store cannot be written, so sign-outs are lost when this process ends")

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
            # Known revocations stay active; the page itself reports the error of the store.
            pass


def _name(cookie: str) -> str:
    # The name of a lease has at most 64 characters (alerts/schema.py).
    return _PREFIX + hashlib.sha256(cookie.encode()).hexdigest()[:48]
