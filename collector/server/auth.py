"""The gate: who is let in, under which name and environment, and how often.

Asked for every export (HTTP and gRPC), for `/v1/events` and for `/metrics`; not for `/`, `/livez`, `/readyz` and
`/healthz`, which say nothing of the data.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from http import HTTPStatus

from ...core.errors import StagelensError
from ...core.names import ENVIRONMENT, SERVICE_NAME
from ...core.stages import OTHER
from ..ingest.series import UNKNOWN_SERVICE
from ..ingest.validation import printable_text
from ..otlp.model import Attributes
from .access_config import Access, Certificate, Limits, Token
from .client_limits import ClientMeter, ClientMeters, ServiceShares, whole_seconds

# Longer than any token, and short enough that to hash it costs nothing. [characters]
MAX_AUTHORIZATION_CHARS = 4096

_CREDENTIALS_REQUIRED = (
    "this collector asks for a token: set OTEL_EXPORTER_OTLP_HEADERS=authorization=Bearer%20<token> where you send from"
)
_CERTIFICATE_REQUIRED = (
    "this collector asks for a client certificate: set OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and "
    "OTEL_EXPORTER_OTLP_CLIENT_KEY where you send from"
)
_NOT_KNOWN = "this token is not known to the collector: compare it with the one in its configuration"
_NOT_BEARER = "the Authorization header must say `Bearer <token>`"


class RefusedError(StagelensError):
    """A caller is not let in.

    Args:
        status: 401 (answer with `WWW-Authenticate: Bearer`; UNAUTHENTICATED of gRPC), 403 (PERMISSION_DENIED) or
            429 (RESOURCE_EXHAUSTED).
        message: What was wrong and what to do; it repeats nothing that was sent.
        retry_after_seconds: When to send it again; None where that is useless.
    """

    def __init__(self, status: HTTPStatus, message: str, retry_after_seconds: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.retry_after_seconds = retry_after_seconds


@dataclass(frozen=True, slots=True)
class Caller:
    """What is known of who calls.

    Args:
        address: The address of the connection's other end, never what a header says.
        authorization: The `Authorization` header (`authorization` in gRPC's metadata), "" for none.
        certificate: The common name of a verified client certificate, "" for none.
    """

    address: str
    authorization: str = field(default="", repr=False)
    certificate: str = ""


@dataclass(frozen=True, slots=True)
class AdmittedClient:
    """A caller that was let in.

    Args:
        client: Its name: of its token or certificate, or its address.
        environment: What takes the place of the environment that its resources claim, or None.
        names: Says whether it may name a service.
        meter: What counts what it sends; `Gate.received` tells it.
    """

    client: str
    environment: str | None = None
    names: Callable[[str], bool] = field(default=lambda _: True, repr=False, compare=False)
    meter: ClientMeter | None = field(default=None, repr=False, compare=False)

    def correct(self, resource: Attributes) -> None:
        """Put into the attributes of a resource what its sender cannot choose: its environment, and `__other__` past its share of services."""
        if self.environment is not None:
            resource[ENVIRONMENT] = self.environment
        if not self.names(printable_text(resource.get(SERVICE_NAME, "")) or UNKNOWN_SERVICE):
            resource[SERVICE_NAME] = OTHER


@dataclass(frozen=True, slots=True)
class _Client:
    kind: str
    name: str
    environment: str | None
    limits: Limits


class AccessControl:
    """Lets callers in. Thread-safe.

    Args:
        access: Says who may send now; asked at every call, so that what is taken out of a file no longer counts.
        is_open: Whether those are let in who show neither token nor certificate though others must.
        clock: Seconds of a monotonic clock.
        known_services: Services that the store has already, see `ServiceShares`.

    Attributes:
        shares: How many services each has named.
    """

    def __init__(
        self,
        access: Callable[[], Access],
        *,
        is_open: bool = False,
        clock: Callable[[], float] = time.monotonic,
        known_services: Collection[str] = (),
    ) -> None:
        self._access, self._is_open, self._clock = access, is_open, clock
        self._meters = ClientMeters()
        self.shares = ServiceShares(clock, known_services)
        self._lock = threading.Lock()

    def admit(self, caller: Caller) -> AdmittedClient:
        """Let *caller* in.

        Raises:
            RefusedError: It is not known, or has sent too much.
        """
        client = self._client(self._access(), caller)
        names = functools.partial(self.shares.admit, (client.kind, client.name))
        if client.limits == Limits():
            return AdmittedClient(client.name, client.environment, names)
        with self._lock:
            now = self._clock()
            meter = self._meters.of((client.kind, client.name), client.limits, now)
            wait_seconds = meter.request(now)
        if wait_seconds:
            seconds = whole_seconds(wait_seconds)
            msg = f"{client.name} sends more than it may; send it again in {seconds} s, or raise its limit"
            raise RefusedError(HTTPStatus.TOO_MANY_REQUESTS, msg, seconds)
        return AdmittedClient(client.name, client.environment, names, meter)

    def received(self, admission: AdmittedClient, size_bytes: int) -> None:
        """Note how large the body was that came with *admission*, as it came; the client's next request waits for it."""
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
        if access.asks and not self._is_open:
            raise RefusedError(
                HTTPStatus.UNAUTHORIZED, _CREDENTIALS_REQUIRED if access.tokens else _CERTIFICATE_REQUIRED
            )
        return _Client("address", owner_of(caller.address), None, access.anonymous)


def _match_token(tokens: tuple[Token, ...], authorization: str) -> Token:
    scheme, _, shown = authorization.partition(" ")
    if scheme.lower() != "bearer" or len(authorization) > MAX_AUTHORIZATION_CHARS:
        raise RefusedError(HTTPStatus.UNAUTHORIZED, _NOT_BEARER)
    digest = hashlib.sha256(shown.strip().encode(errors="replace")).digest()
    found: Token | None = None
    # All of them, and digests: neither the place of a token in the list nor how much of it was right shows in the time.
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
