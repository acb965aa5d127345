"""TLS for HTTP and gRPC, from the same files; what is put in their place is used from the next connection on.

Without `client_ca` nobody is asked for a certificate. With it, HTTP asks and lets the gate decide (a token may do
instead, and probes of a scheduler, which have neither, reach /livez); gRPC cannot ask without requiring it.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import threading
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Generic, TypeVar

import grpc

from ...core.errors import ConfigError
from ...core.settings.live_file import stamp_of
from .clients import TlsFiles

_log = logging.getLogger(__name__)

# Where the application finds the common name of the client's certificate, in the scope of a request.
SCOPE_KEY = "stagelens.certificate"

Scope = MutableMapping[str, Any]
Application = Callable[[Scope, Any, Any], Awaitable[None]]
T = TypeVar("T")


class HttpTls:
    """The context of an HTTPS server.

    Args:
        files: What it is made of.

    Attributes:
        context: For the server; it hands each handshake on to the newest one that could be made of the files.

    Raises:
        ConfigError: They cannot be used.
    """

    def __init__(self, files: TlsFiles) -> None:
        self._watched = _Watched(files, _context)
        self.context = self._watched.newest()
        # OpenSSL calls it for every handshake, also where the client names no server.
        self.context.sni_callback = self._choose

    def _choose(self, connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _context: ssl.SSLContext) -> None:
        # Its authorities count for this handshake, too, and not its certificate alone.
        connection.context = self._watched.newest()


class GrpcTls:
    """The credentials of a gRPC server.

    Args:
        files: What they are made of.

    Attributes:
        credentials: For `add_secure_port`.

    Raises:
        ConfigError: They cannot be used.
    """

    def __init__(self, files: TlsFiles) -> None:
        self._watched = _Watched(files, _configuration)
        self._given = self._watched.newest()
        self.credentials: grpc.ServerCredentials = grpc.dynamic_ssl_server_credentials(
            self._given,
            self._newer,  # pyright: ignore[reportArgumentType] - it may return None, says gRPC
            require_client_authentication=files.client_ca is not None,
        )

    def _newer(self) -> grpc.ServerCertificateConfiguration | None:
        """Return what to go on with; gRPC asks before each handshake, and None keeps what it has."""
        newest = self._watched.newest()
        if newest is self._given:
            return None
        self._given = newest
        return newest


def certificate_of(transport: asyncio.BaseTransport) -> str:
    """Return the common name of the verified certificate that the other end of *transport* showed, "" for none."""
    # Only verified ones have any content here.
    shown: dict[str, Any] = transport.get_extra_info("peercert") or {}
    subject: tuple[tuple[tuple[str, str], ...], ...] = shown.get("subject", ())
    names = [value for part in subject for key, value in part if key == "commonName"]
    return names[-1] if names else ""


def named(application: Application, certificate: str) -> Application:
    """Return *application*, told under `SCOPE_KEY` that its caller showed *certificate*.

    A protocol of uvicorn does `self.app = named(self.app, certificate_of(transport))` once a connection is made.
    """

    async def with_certificate(scope: Scope, receive: Any, send: Any) -> None:
        await application(scope | {SCOPE_KEY: certificate} if isinstance(scope, dict) else scope, receive, send)

    return with_certificate if certificate else application


class _Watched(Generic[T]):
    """What is *made* of some files, made again when they change; while they are broken the last good one is used on."""

    def __init__(self, files: TlsFiles, make: Callable[[TlsFiles], T]) -> None:
        self._files, self._make = files, make
        self._lock = threading.Lock()
        self._stamps = _stamps(files)
        self._current = make(files)

    def newest(self) -> T:
        with self._lock:
            stamps = _stamps(self._files)
            if stamps != self._stamps:
                self._stamps = stamps
                self._renew()
            return self._current

    def _renew(self) -> None:
        try:
            self._current = self._make(self._files)
        except ConfigError as error:
            # Also while somebody replaces one file after the other.
            _log.error("%s; the certificate read before is used on", error)
        else:
            _log.info("%s was read again", self._files.certificate)


def _stamps(files: TlsFiles) -> list[tuple[int, int, int] | None]:
    paths = (files.certificate, files.key, files.client_ca)
    return [stamp_of(path) for path in paths if path is not None]


def _context(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # A client that renegotiates without end costs more than it pays.
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    try:
        # Without this, a key with a password would ask for it on the terminal.
        context.load_cert_chain(files.certificate, files.key, password="")
    except OSError as error:  # ssl.SSLError is one
        cure = "give a certificate and its own key, without a password, as PEM"
        msg = f"access.tls: {files.certificate} and {files.key} cannot be used ({_reason(error)}); {cure}"
        raise ConfigError(msg) from error
    if files.client_ca is not None:
        context.verify_mode = ssl.CERT_OPTIONAL
        try:
            context.load_verify_locations(files.client_ca)
        except OSError as error:
            msg = f"access.tls.client_ca: {files.client_ca} cannot be used ({_reason(error)}); give certificates as PEM"
            raise ConfigError(msg) from error
    return context


def _configuration(files: TlsFiles) -> grpc.ServerCertificateConfiguration:
    # gRPC takes broken files without a word and then refuses every connection.
    _context(files)
    pair = (files.key.read_bytes(), files.certificate.read_bytes())
    return grpc.ssl_server_certificate_configuration(
        [pair], root_certificates=files.client_ca.read_bytes() if files.client_ca else None
    )


def _reason(error: OSError) -> str:
    return (error.reason if isinstance(error, ssl.SSLError) else error.strerror) or str(error)
