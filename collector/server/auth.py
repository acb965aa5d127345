"""Access control: authentication of callers, their environment, rate limits and service limits."""

from __future__ import annotations

import functools
import hashlib
import hmac
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus

from ...core.errors import StagelensError
from ...core.names import ENVIRONMENT, SERVICE_NAME
from ...core.stages import OTHER
from ..ingest.validation import UNKNOWN_SERVICE, printable_text
from ..otlp.model import Attributes
from .access_config import Access, Certificate, RateLimits, Token
from .connection_limits import client_of
from .rate_limits import ClientMeter, ClientMeters
from .service_shares import ServiceShares

# Longer than any token, and short enough to hash cheaply. [characters]
MAX_AUTHORIZATION_CHARS = 4096
_CREDENTIALS_REQUIRED = "this collector requires a token: set OTEL_EXPORTER_OTLP_HEADERS=authorization=Bearer%20<token> in the sending process"
_CERTIFICATE_REQUIRED = (
    "this collector requires a client certificate: set OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and "
    "OTEL_EXPORTER_OTLP_CLIENT_KEY in the sending process"
)
_NOT_KNOWN = "this token is not known to the collector: compare it with the one in its configuration"
_NOT_BEARER = "the Authorization header must be `Bearer <token>`"


def whole_seconds(wait_seconds: float) -> int:
    """Return *wait_seconds* as a `Retry-After` value: a whole number, at least 1.

    >>> whole_seconds(0.2), whole_seconds(3.01)
    (1, 4)
    """
    return max(math.ceil(wait_seconds), 1)


class RefusedError(StagelensError):
    def __init__(self, status: HTTPStatus, message: str, retry_after_seconds: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.retry_after_seconds = retry_after_seconds


@dataclass(frozen=True, slots=True)
class Caller:
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
            certificate = _match_certificate(access.certificates, caller.certificate)
            return _Client("certificate", caller.certificate, certificate.environment, certificate.limits)
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
    matched: Token | None = None
    # All digests are compared, so the response time reveals neither the position of a token nor a partial match.
    for token in tokens:
        if hmac.compare_digest(token.digest, digest):
            matched = token
    if matched is None:
        raise RefusedError(HTTPStatus.UNAUTHORIZED, _NOT_KNOWN)
    return matched


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
