"""Authentication: determines the reader of a request from a proxy header, a session, a password or the token.

The module also contains the login throttle, which delays repeated failed logins from one address or IPv6 network, and the signed
session cookies, CSRF tokens and revoked sessions.

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
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from threading import BoundedSemaphore, Lock

from sqlalchemy.exc import SQLAlchemyError
from werkzeug.wrappers import Request

from ...collector.server.connection_limits import client_of
from ...core.addresses import parse_ip
from ...core.errors import StoreError
from ...core.text import is_whole_number
from ...store import Store, lease
from ..access import LiveAccess, ReaderAccess
from ..config import DashboardConfig
from .signed_endpoints import give_way
from .users import Users

_log = logging.getLogger(__name__)

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
_PREFIX = "signed-out:"
# Maximum delay until a sign-out at another dashboard takes effect here. [seconds]
_FRESH_SECONDS = 10.0
LENGTH_SECONDS = 30 * 86_400


@dataclass(frozen=True, slots=True)
class Principal:
    name: str = ""
    bound_to: str = ""
    by_token: bool = False
    groups: tuple[str, ...] = ()
    has_token: bool = False


class TooManyAttemptsError(Exception):
    def __init__(self, wait_seconds: float) -> None:
        super().__init__(wait_seconds)
        self.wait_seconds = wait_seconds


class Authenticator:
    """Authentication of readers. Thread-safe."""

    def __init__(
        self,
        config: DashboardConfig,
        access: LiveAccess,
        signed_out: RevokedSessions,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._config, self._signs_in = config, config.signs_in
        self._signed_out = signed_out
        self._clock = clock
        self._throttle = LoginThrottle()
        self.users = Users(config.users) if config.users else None
        self._access = access
        # Hashing a password takes most of a core: successful checks are cached for programs that send it with each request.
        self._remembered: OrderedDict[str, None] = OrderedDict()
        self._remember_key = secrets.token_bytes(32)
        self._lock = Lock()
        self._hashing = BoundedSemaphore(_MAX_HASHING)

    def authenticate(self, request: Request) -> Principal | None:
        if not self._signs_in:
            return Principal()
        return self._of_proxy(request) or self._of_header(request) or self._of_cookie(request)

    def is_known(self, request: Request) -> bool:
        if not self._signs_in or self._of_proxy(request) or self._session(request):
            return True
        scheme = request.headers.get("Authorization", "").partition(" ")[0].lower()
        shown = request.authorization if scheme in ("basic", "bearer") else None
        if shown is None:
            return False
        name, secret = shown.username or "", shown.password or shown.token or ""
        with self._lock:
            is_remembered = self._mark(name, secret, self._signer(name) or "") in self._remembered
        return is_remembered or (not name and self._is_right(name, secret))

    def access_of(self, principal: Principal) -> ReaderAccess:
        return self._access.of(principal.name, principal.groups, by_token=principal.has_token)

    def sign_in(self, request: Request, name: str, secret: str) -> str | None:
        signer = self._proved(request, name, secret)
        return session_of(name, signer, self._clock()) if signer else None

    def sign_out(self, request: Request) -> None:
        if self._of_cookie(request) is not None:
            self._signed_out.add(request.cookies[COOKIE])

    def is_trusted_proxy(self, request: Request) -> bool:
        address = parse_ip(request.remote_addr or "")
        # A dual-stack socket writes IPv4 addresses as ::ffff:10.0.0.5.
        address = getattr(address, "ipv4_mapped", None) or address
        return address is not None and any(address in network for network in self._config.trusted_proxies)

    def is_https(self, request: Request) -> bool:
        if self._config.behind_proxy or self.is_trusted_proxy(request):
            return request.headers.get("X-Forwarded-Proto", request.scheme) == "https"
        return request.is_secure

    def _of_proxy(self, request: Request) -> Principal | None:
        header = self._config.proxy_header
        if not header or not self.is_trusted_proxy(request):
            return None
        name = request.headers.get(header, "").strip()[:_MAX_NAME]
        listed = request.headers.get(self._config.proxy_groups_header or "", "").split(",")
        groups = tuple(group.strip() for group in listed if group.strip())
        return Principal(name, f"proxy {name}", groups=groups) if name else None

    def _of_cookie(self, request: Request) -> Principal | None:
        principal = self._session(request)
        return None if principal is None or principal.bound_to in self._signed_out else principal

    def _session(self, request: Request) -> Principal | None:
        cookie = request.cookies.get(COOKIE, "")
        name = name_in(cookie)
        signer = None if name is None else self._signer(name)
        if name is None or signer is None or not is_session(cookie, signer, self._clock()):
            return None
        return Principal(name, cookie, has_token=not name)

    def _of_header(self, request: Request) -> Principal | None:
        shown = request.authorization
        if shown is None:
            return None
        if shown.type == "bearer" and self._config.token:
            signer = self._proved(request, "", shown.token or "")
            return Principal(by_token=True, has_token=True) if signer else None
        if shown.type == "basic":
            name = shown.username or ""
            signer = self._proved(request, name, shown.password or "")
            return Principal(name, f"name {name}", has_token=not name) if signer else None
        return None

    def _signer(self, name: str) -> str | None:
        if not name:
            return self._config.token
        return self.users.line(name) if self.users else None

    def _proved(self, request: Request, name: str, secret: str) -> str | None:
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
            give_way(request)
            if not self._is_right(name, secret):
                return None
        finally:
            self._hashing.release()
        self._throttle.succeeded(address)
        with self._lock:
            self._remembered[mark] = None
            if len(self._remembered) > _MAX_REMEMBERED:
                self._remembered.popitem(last=False)
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

    def _address(self, request: Request) -> str:
        if self.is_trusted_proxy(request):
            # The last entry was added by our proxy; earlier entries can be forged.
            last = request.headers.get("X-Forwarded-For", "").rpartition(",")[2].strip()
            return _without_port(last) or str(request.remote_addr)
        return str(request.remote_addr)


def _without_port(address: str) -> str:
    """Return *address* without the port that some proxies add to it in X-Forwarded-For.

    >>> _without_port("10.0.0.7:5678"), _without_port("[2001:db8::1]:80"), _without_port("2001:db8::1")
    ('10.0.0.7', '2001:db8::1', '2001:db8::1')
    """
    if address.startswith("["):
        return address[1:].partition("]")[0]
    return address.partition(":")[0] if address.count(":") == 1 else address


class LoginThrottle:
    """Failed logins by address. Thread-safe and bounded: the least recently used address is dropped."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = Lock()
        # Number of failed attempts and end of the delay, by address.
        self._known: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def attempt(self, address: str) -> float:
        """Return the time [seconds] until the next allowed attempt of *address*; 0 if an attempt is allowed now."""
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
        with self._lock:
            self._known.pop(client_of(address), None)


def session_of(name: str, secret: str, now: float) -> str:
    until = str(int(now) + LENGTH_SECONDS)
    encoded_name = urlsafe_b64encode(name.encode()).decode()
    # Without this random part, two sessions of the same second would be equal, and would be revoked together.
    which = secrets.token_hex(8)
    return f"{encoded_name}.{until}.{which}.{_signed(secret, 'session', encoded_name, until, which)}"


def name_in(cookie: str) -> str | None:
    try:
        return urlsafe_b64decode(cookie.partition(".")[0].encode()).decode() if cookie.count(".") == 3 else None  # noqa: PLR2004 - the four parts of `session_of`
    except ValueError:
        return None


def is_session(cookie: str, secret: str, now: float) -> bool:
    encoded_name, until, which, signature = cookie.split(".")
    genuine = hmac.compare_digest(signature.encode(), _signed(secret, "session", encoded_name, until, which).encode())
    return genuine and is_whole_number(until) and int(until) > now


class CsrfTokens:
    def __init__(self) -> None:
        self._key = secrets.token_hex(32)

    def token(self, bound_to: str) -> str:
        return _signed(self._key, "write", bound_to)

    def accepts(self, token: str, bound_to: str) -> bool:
        return hmac.compare_digest(token.encode(), self.token(bound_to).encode())


def _signed(secret: str, *parts: str) -> str:
    return hmac.new(secret.encode(), "\n".join(parts).encode(), hashlib.sha256).hexdigest()


class RevokedSessions:
    """Revoked session cookies, stored until their expiry. Thread-safe."""

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        self._store, self._clock = store, clock
        self._lock = Lock()
        self._known: set[str] = set()
        self._read_at = float("-inf")

    def add(self, cookie: str) -> None:
        now = self._clock()
        with self._lock:
            self._known.add(lease.name_of(_PREFIX, cookie.encode()))
        try:
            with self._store.transaction() as connection:
                lease.remember(connection, _PREFIX, cookie.encode(), now, LENGTH_SECONDS)
        except (StoreError, SQLAlchemyError):
            _log.warning("dashboard: the store cannot be written, so a restart of the dashboard forgets sign-outs")

    def __contains__(self, cookie: str) -> bool:
        with self._lock:
            now = self._clock()
            if not 0 <= now - self._read_at < _FRESH_SECONDS:
                self._read_at = now
                self._read(now)
            return lease.name_of(_PREFIX, cookie.encode()) in self._known

    def _read(self, now: float) -> None:
        try:
            with self._store.engine.connect() as connection:
                self._known |= lease.held(connection, _PREFIX, now)
        except (StoreError, SQLAlchemyError):
            # Known revocations stay active; the page itself reports the error of the store.
            pass
