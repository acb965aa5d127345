"""Access control: authentication of callers, their environment, rate limits and service limits.

Access control applies to every export (HTTP and gRPC), to `/v1/events` and to `/metrics`; not to `/`, `/livez`, `/readyz` and
`/healthz`, which show none of the data. Rate limits are token buckets for each client, in bounded number. Each sender
has a share of the services, so that invented service names do not use up the service limit of the whole store.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TypeAlias

from ...core.errors import StagelensError
from ...core.names import ENVIRONMENT, SERVICE_NAME
from ...core.stages import OTHER
from ...store import SeriesCaps
from ..ingest.validation import UNKNOWN_SERVICE, printable_text
from ..otlp.model import Attributes
from .access_config import Access, Certificate, RateLimits, Token
from .connection_limits import client_of

# Services with data within a day that all senders share. [count]
SERVICES = SeriesCaps().services
# New services of a sender within a day that always have a place; those of all senders fit in the store beside `SERVICES`. [count]
MIN_SERVICES = 4
# A service that a sender has not used for this time no longer counts towards its share. [seconds]
FORGOTTEN_SECONDS = 86_400.0
# Senders that are tracked separately; all others have one limit in common. A service takes about 300 bytes. [count]
_MAX_SENDERS = 1000
_DROP_SECONDS = 60.0

# How a sender is identified (`token`, `certificate` or `address`), and its name.
Sender: TypeAlias = tuple[str, str]


class ServiceShares:
    """Services that each sender has added recently. Thread-safe.

    A sender may add a service while it has added fewer than there are free ones of all *places*, so that a later sender
    always finds some.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, places: int = SERVICES) -> None:
        self._clock, self._places = clock, places
        self._known: frozenset[str] = frozenset()
        # Services with data within a day, and those added since.
        self._active: set[str] = set()
        self._dropped_at = float("-inf")
        self._lock = threading.Lock()
        # By sender (None for all untracked senders): services and time of last use, the least recently used first.
        self._named: OrderedDict[Sender | None, OrderedDict[str, float]] = OrderedDict()
        # Senders that exceeded their share, and when last.
        self._greedy: dict[Sender | None, float] = {}

    def update(self, known: Iterable[str], active: Iterable[str]) -> None:
        """Replace the services in the store: all of them, which are always admitted, and those with data within a day."""
        now = self._clock()
        with self._lock:
            for named in self._named.values():
                _drop_expired(named, now)
            self._known, self._active = frozenset(known), set(active).union(*self._named.values())

    def admit(self, sender: Sender | None, service: str) -> bool:
        """Return whether *sender* may use *service*: it is known or was used recently, or the sender has a share left."""
        if service in self._known:
            return True
        now = self._clock()
        with self._lock:
            if sender not in self._named and len(self._named) >= _MAX_SENDERS:
                self._drop_idle_senders(now)
                sender = sender if len(self._named) < _MAX_SENDERS else None
            named = self._named.setdefault(sender, OrderedDict())
            _drop_expired(named, now)
            if service not in named and len(named) >= max(self._places - len(self._active), MIN_SERVICES):
                self._greedy[sender] = now
                return False
            named[service] = now
            named.move_to_end(service)
            self._active.add(service)
            return True

    def greedy(self) -> list[str]:
        now = self._clock()
        with self._lock:
            self._greedy = {sender: at for sender, at in self._greedy.items() if now - at < FORGOTTEN_SECONDS}
            return [" ".join(sender) if sender else "many addresses" for sender in self._greedy]

    def _drop_idle_senders(self, now: float) -> None:
        """Drop senders without recent services, at most once a minute because all senders are checked."""
        if now - self._dropped_at < _DROP_SECONDS:
            return
        self._dropped_at = now
        for sender, named in list(self._named.items()):
            _drop_expired(named, now)
            if not named:
                del self._named[sender]


def _drop_expired(named: OrderedDict[str, float], now: float) -> None:
    while named and now - next(iter(named.values())) >= FORGOTTEN_SECONDS:
        named.popitem(last=False)


# An agent posts every 10 s, so a rate applies to that interval and not to each second.
BURST_SECONDS = 10.0
# Clients with a rate limit that are tracked at once, about 300 bytes each. [count]
MAX_METERS = 10_000
# Floating-point rounding: a client that retries exactly after its delay must be admitted. [seconds]
_ROUNDING_SECONDS = 1e-9
# Idle meters that a new one may remove: more than one, so that the number decreases after a flood.
_MAX_CLEARED = 2


class TokenBucket:
    """Token bucket of a rate limit; the level may become negative."""

    __slots__ = ("_at", "_level", "_per_second", "_size")

    def __init__(self, per_second: float, now: float) -> None:
        self._per_second = per_second
        self._size = max(per_second * BURST_SECONDS, 1.0)
        self._level, self._at = self._size, now

    def wait_seconds(self, least: float, now: float) -> float:
        """Return the seconds until the bucket contains *least* tokens; 0 if it already does."""
        wait_seconds = (least - self._filled(now)) / self._per_second
        return wait_seconds if wait_seconds > _ROUNDING_SECONDS else 0.0

    def take(self, amount: float, now: float) -> None:
        """Remove *amount* tokens; the level may become negative."""
        self._level, self._at = self._filled(now) - amount, now

    def is_full(self, now: float) -> bool:
        return self._filled(now) >= self._size

    def _filled(self, now: float) -> float:
        return min(self._size, self._level + (now - self._at) * self._per_second)


class ClientMeter:
    """Request and byte limits of one client. Not thread-safe."""

    __slots__ = ("_bytes", "_requests")

    def __init__(self, limits: RateLimits, now: float) -> None:
        self._requests, self._bytes = (
            None if rate is None else TokenBucket(rate, now)
            for rate in (limits.requests_per_second, limits.bytes_per_second)
        )

    def request(self, now: float) -> float:
        """Count an allowed request and return 0, or return the retry delay of a refused request in seconds."""
        requests = self._requests.wait_seconds(1.0, now) if self._requests else 0.0
        # The size of a body is known only after receipt: a large body may overdraw the bucket and delay the next request.
        size = self._bytes.wait_seconds(0.0, now) if self._bytes else 0.0
        wait_seconds = max(requests, size)
        if not wait_seconds and self._requests:
            self._requests.take(1.0, now)
        return wait_seconds

    def body(self, size_bytes: int, now: float) -> None:
        if self._bytes:
            self._bytes.take(size_bytes, now)

    def is_idle(self, now: float) -> bool:
        """Return whether all buckets are full, so that the meter can be replaced by a new one."""
        return all(bucket is None or bucket.is_full(now) for bucket in (self._requests, self._bytes))


class ClientMeters:
    """Rate limits of all clients. Not thread-safe.

    Only idle meters are removed; otherwise a client with many addresses could reset its limit. Beyond *most* meters, new clients
    share one meter until others become idle.
    """

    def __init__(self, most: int = MAX_METERS) -> None:
        self._most = most
        # Least recently used first.
        self._meters: OrderedDict[Hashable, ClientMeter] = OrderedDict()
        self._shared: dict[RateLimits, ClientMeter] = {}

    def __len__(self) -> int:
        return len(self._meters)

    def of(self, client: Hashable, limits: RateLimits, now: float) -> ClientMeter:
        key = (client, limits)
        if key in self._meters:
            self._meters.move_to_end(key)
            return self._meters[key]
        self._clear(now)
        if len(self._meters) >= self._most:
            return self._shared.get(limits) or self._shared.setdefault(limits, ClientMeter(limits, now))
        return self._meters.setdefault(key, ClientMeter(limits, now))

    def _clear(self, now: float) -> None:
        for _ in range(min(_MAX_CLEARED, len(self._meters))):
            key = next(iter(self._meters))
            if not self._meters[key].is_idle(now):
                # A meter that refills slowly must not block the idle ones behind it.
                self._meters.move_to_end(key)
                continue
            del self._meters[key]


def whole_seconds(wait_seconds: float) -> int:
    """Return *wait_seconds* as a `Retry-After` value: a whole number, at least 1.

    >>> whole_seconds(0.2), whole_seconds(3.01)
    (1, 4)
    """
    return max(math.ceil(wait_seconds), 1)


# Longer than any token, and short enough to hash cheaply. [characters]
MAX_AUTHORIZATION_CHARS = 4096

_CREDENTIALS_REQUIRED = "this collector requires a token: set OTEL_EXPORTER_OTLP_HEADERS=authorization=Bearer%20<token> in the sending process"
_CERTIFICATE_REQUIRED = (
    "this collector requires a client certificate: set OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and "
    "OTEL_EXPORTER_OTLP_CLIENT_KEY in the sending process"
)
_NOT_KNOWN = "this token is not known to the collector: compare it with the one in its configuration"
_NOT_BEARER = "the Authorization header must be `Bearer <token>`"


class RefusedError(StagelensError):
    def __init__(self, status: HTTPStatus, message: str, retry_after_seconds: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.retry_after_seconds = retry_after_seconds


@dataclass(frozen=True, slots=True)
class Caller:
    """Address and credentials of a caller."""

    address: str  # the remote address of the connection, never from a header
    # The `Authorization` header (`authorization` in gRPC metadata), "" for none.
    authorization: str = field(default="", repr=False)
    certificate: str = ""  # the common name of a verified client certificate, "" for none


@dataclass(frozen=True, slots=True)
class AdmittedClient:
    client: str  # the name of its token or certificate, or its address
    environment: str | None = None  # environment that replaces the one in the client's resources; None to accept theirs
    # Function that returns whether the client may use a service name.
    names: Callable[[str], bool] = field(default=lambda _: True, repr=False, compare=False)
    # Meter of the client's rate limit; None for no limit.
    meter: ClientMeter | None = field(default=None, repr=False, compare=False)

    def correct(self, resource: Attributes) -> None:
        """Set the resource attributes that the sender cannot choose: the environment, and `__other__` beyond its share of services."""
        if self.environment is not None:
            resource[ENVIRONMENT] = self.environment
        if not self.names(printable_text(resource.get(SERVICE_NAME, "")) or UNKNOWN_SERVICE):
            resource[SERVICE_NAME] = OTHER


@dataclass(frozen=True, slots=True)
class _Client:
    kind: str
    name: str
    environment: str | None
    limits: RateLimits


class AccessControl:
    """Authenticates callers and applies their limits. Thread-safe.

    Args:
        access: Function that returns the current access configuration; called for every request, so that removed entries take
            effect at once.
        is_open: Whether callers without credentials are admitted although credentials are configured.
    """

    def __init__(
        self,
        access: Callable[[], Access],
        *,
        is_open: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._access, self._is_open, self._clock = access, is_open, clock
        self._meters = ClientMeters()
        self.shares = ServiceShares(clock)
        self._lock = threading.Lock()

    def admit(self, caller: Caller) -> AdmittedClient:
        client = self._client(self._access(), caller)
        names = functools.partial(self.shares.admit, (client.kind, client.name))
        if client.limits == RateLimits():
            return AdmittedClient(client.name, client.environment, names)
        with self._lock:
            now = self._clock()
            meter = self._meters.of((client.kind, client.name), client.limits, now)
            wait_seconds = meter.request(now)
        if wait_seconds:
            seconds = whole_seconds(wait_seconds)
            msg = f"{client.name} exceeds its rate limit; send it again in {seconds} s, or raise its limit"
            raise RefusedError(HTTPStatus.TOO_MANY_REQUESTS, msg, seconds)
        return AdmittedClient(client.name, client.environment, names, meter)

    def received(self, admission: AdmittedClient, size_bytes: int) -> None:
        """Count the size of the received body of *admission*; a large body delays the next request of the client."""
        if admission.meter is not None:
            with self._lock:
                admission.meter.body(size_bytes, self._clock())

    def _client(self, access: Access, caller: Caller) -> _Client:
        if caller.authorization and access.tokens:
            token = _match_token(access.tokens, caller.authorization)
            return _Client("token", token.name, token.environment, token.limits)
        if caller.certificate:
            known = _match_certificate(access.certificates, caller.certificate)
            return _Client("certificate", caller.certificate, known.environment, known.limits)
        if access.requires_credentials and not self._is_open:
            raise RefusedError(
                HTTPStatus.UNAUTHORIZED, _CREDENTIALS_REQUIRED if access.tokens else _CERTIFICATE_REQUIRED
            )
        return _Client("address", client_of(caller.address), None, access.anonymous)


def _match_token(tokens: tuple[Token, ...], authorization: str) -> Token:
    scheme, _, shown = authorization.partition(" ")
    if scheme.lower() != "bearer" or len(authorization) > MAX_AUTHORIZATION_CHARS:
        raise RefusedError(HTTPStatus.UNAUTHORIZED, _NOT_BEARER)
    digest = hashlib.sha256(shown.strip().encode(errors="replace")).digest()
    found: Token | None = None
    # All digests are compared, so the response time reveals neither the position of a token nor a partial match.
    for token in tokens:
        if hmac.compare_digest(token.digest, digest):
            found = token
    if found is None:
        raise RefusedError(HTTPStatus.UNAUTHORIZED, _NOT_KNOWN)
    return found


def _match_certificate(certificates: tuple[Certificate, ...], common_name: str) -> Certificate:
    if not certificates:
        return Certificate(common_name)
    for certificate in certificates:
        if certificate.common_name == common_name:
            return certificate
    msg = (
        f"the certificate of {common_name} is not among those of `access.certificates` in the collector's configuration"
    )
    raise RefusedError(HTTPStatus.FORBIDDEN, msg)
