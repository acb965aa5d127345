"""Authentication: determines the reader of a request from a proxy header, a session, a password or the token.

The module also contains the login throttle, which delays repeated failed logins from one address or IPv6 network.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from threading import BoundedSemaphore, Lock

from werkzeug.wrappers import Request

from ...core.addresses import client_of, parse_ip, without_port
from ..config import DashboardConfig
from .sessions import RevokedSessions, is_session, name_in, session_of
from .users import Users

# Number of failed attempts without a delay; each further attempt doubles the delay.
_FREE = 5
_LONGEST_SECONDS = 300.0
# Limit of the exponent: larger values are beyond `_LONGEST_SECONDS` and would overflow.
_MAX_DOUBLINGS = 10
_MAX_ADDRESSES = 4096
COOKIE = "stagelens_session"
_MAX_REMEMBERED = 256
_MAX_NAME = 128
# Maximum number of page threads that check a secret at the same time, and the retry time of other requests. [seconds]
_MAX_HASHING, _BUSY_SECONDS = 3, 1.0


@dataclass(frozen=True, slots=True)
class Principal:
    """Authenticated reader.

    Args:
        name: Name of the reader; "" if readers have no names.
        bound_to: Value to which the CSRF tokens of the reader are bound.
        by_token: Whether the token came in the `Authorization` header, which browsers do not send automatically.
    """

    name: str = ""
    bound_to: str = ""
    by_token: bool = False


class TooManyAttemptsError(Exception):
    """Too many failed logins from one address, or too many concurrent password checks.

    Args:
        wait_seconds: Time until the next attempt. [seconds]
    """

    def __init__(self, wait_seconds: float) -> None:
        super().__init__(wait_seconds)
        self.wait_seconds = wait_seconds


class Authenticator:
    """Authentication of readers. Thread-safe.

    Args:
        config: Access rules of the dashboard.
        signed_out: Revoked sessions.
        clock: Function that returns the current time. [Unix seconds]

    Raises:
        ConfigError: The user file is invalid.
    """

    def __init__(
        self, config: DashboardConfig, signed_out: RevokedSessions, clock: Callable[[], float] = time.time
    ) -> None:
        self._config, self._signs_in = config, config.signs_in
        self._signed_out = signed_out
        self._clock = clock
        self._throttle = LoginThrottle()
        self.users = Users(config.users) if config.users else None
        # Hashing a password takes most of a core: successful checks are cached for programs that send it with each request.
        self._remembered: OrderedDict[str, None] = OrderedDict()
        self._remember_key = secrets.token_bytes(32)
        self._lock = Lock()
        self._hashing = BoundedSemaphore(_MAX_HASHING)

    def authenticate(self, request: Request) -> Principal | None:
        """Return the principal of *request*; None if the reader has to sign in.

        Raises:
            TooManyAttemptsError: The request has a secret, but its address has to wait.
        """
        if not self._signs_in:
            return Principal()
        return self._of_proxy(request) or self._of_header(request) or self._of_cookie(request)

    def sign_in(self, request: Request, name: str, secret: str) -> str | None:
        """Return a session for a correct token, or a correct password of *name*; None for a wrong secret.

        Raises:
            TooManyAttemptsError: The address has to wait.
        """
        signer = self._proved(request, name, secret)
        return session_of(name, signer, self._clock()) if signer else None

    def sign_out(self, request: Request) -> None:
        """Revoke the session of *request*, if it has one."""
        if self._of_cookie(request) is not None:
            self._signed_out.add(request.cookies[COOKIE])

    def is_trusted_proxy(self, request: Request) -> bool:
        """Return whether *request* came through a trusted proxy."""
        address = parse_ip(request.remote_addr or "")
        # A dual-stack socket writes IPv4 addresses as ::ffff:10.0.0.5.
        address = getattr(address, "ipv4_mapped", None) or address
        return address is not None and any(address in network for network in self._config.trusted_proxies)

    def is_https(self, request: Request) -> bool:
        """Return whether the reader's browser uses https, possibly through a proxy."""
        if self._config.behind_proxy or self.is_trusted_proxy(request):
            return request.headers.get("X-Forwarded-Proto", request.scheme) == "https"
        return request.is_secure

    def _of_proxy(self, request: Request) -> Principal | None:
        header = self._config.proxy_header
        if not header or not self.is_trusted_proxy(request):
            return None
        name = request.headers.get(header, "").strip()[:_MAX_NAME]
        return Principal(name, f"proxy {name}") if name else None

    def _of_cookie(self, request: Request) -> Principal | None:
        cookie = request.cookies.get(COOKIE, "")
        name = name_in(cookie)
        signer = None if name is None else self._signer(name)
        if name is None or signer is None or not is_session(cookie, signer, self._clock()):
            return None
        if cookie in self._signed_out:
            return None
        return Principal(name, cookie)

    def _of_header(self, request: Request) -> Principal | None:
        shown = request.authorization
        if shown is None:
            return None
        if shown.type == "bearer" and self._config.token:
            known = self._proved(request, "", shown.token or "")
            return Principal(by_token=True) if known else None
        if shown.type == "basic":
            name = shown.username or ""
            known = self._proved(request, name, shown.password or "")
            return Principal(name, f"name {name}") if known else None
        return None

    def _signer(self, name: str) -> str | None:
        """Return the signing secret of sessions of *name*: the line of the user, or the token for an empty name."""
        if not name:
            return self._config.token
        return self.users.line(name) if self.users else None

    def _proved(self, request: Request, name: str, secret: str) -> str | None:
        """Return the signing secret of *name* if *secret* is correct, else None."""
        signer = self._signer(name)
        mark = self._mark(name, secret, signer or "")
        with self._lock:
            if mark in self._remembered:
                return signer
        address = self._address(request)
        # Hashing blocks a thread: failed logins must leave most threads to readers.
        if not self._hashing.acquire(blocking=False):
            raise TooManyAttemptsError(_BUSY_SECONDS)
        try:
            wait = self._throttle.attempt(address)
            if wait:
                raise TooManyAttemptsError(wait)
            if not self._is_right(name, secret):
                return None
        finally:
            self._hashing.release()
        self._throttle.succeeded(address)
        self._remember(mark)
        return signer

    def _is_right(self, name: str, secret: str) -> bool:
        if name:
            return self.users is not None and self.users.accept(name, secret)
        token = self._config.token
        return token is not None and hmac.compare_digest(secret.encode(), token.encode())

    def _mark(self, name: str, secret: str, signer: str) -> str:
        # The key includes the signing secret, so that a changed password is not accepted from the cache.
        text = f"{name}\n{signer}\n{secret}"
        return hmac.new(self._remember_key, text.encode(), hashlib.sha256).hexdigest()

    def _remember(self, mark: str) -> None:
        with self._lock:
            self._remembered[mark] = None
            if len(self._remembered) > _MAX_REMEMBERED:
                self._remembered.popitem(last=False)

    def _address(self, request: Request) -> str:
        if self.is_trusted_proxy(request):
            # The last entry was added by our proxy; earlier entries can be forged.
            last = request.headers.get("X-Forwarded-For", "").rpartition(",")[2].strip()
            return without_port(last) or str(request.remote_addr)
        return str(request.remote_addr)


class LoginThrottle:
    """Failed logins by address. Thread-safe and bounded: the least recently used address is dropped.

    Args:
        clock: Function that returns monotonic time. [seconds]
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = Lock()
        # Number of failed attempts and end of the delay, by address.
        self._known: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def attempt(self, address: str) -> float:
        """Return the time [seconds] until the next allowed attempt of *address*; 0 if an attempt is allowed now.

        An allowed attempt counts as failed until `succeeded` is called, so that concurrent attempts are limited, too.
        """
        owner, now = client_of(address), self._clock()
        with self._lock:
            wrong, until = self._known.get(owner, (0, 0.0))
            if until > now:
                return until - now
            wrong += 1
            wait = min(2.0 ** min(wrong - _FREE, _MAX_DOUBLINGS), _LONGEST_SECONDS) if wrong >= _FREE else 0.0
            self._known[owner] = (wrong, now + wait)
            self._known.move_to_end(owner)
            if len(self._known) > _MAX_ADDRESSES:
                self._known.popitem(last=False)
            return 0.0

    def succeeded(self, address: str) -> None:
        """Reset the failed attempts of *address*."""
        with self._lock:
            self._known.pop(client_of(address), None)
