"""TLS of the servers. The HTTP and gRPC servers use the same files; replaced files are used from the next connection on.

Without `client_ca` no certificate is requested. With it, HTTP requests one and `auth` decides (a token may replace it, and health
probes, which have neither, reach /livez); gRPC cannot request a certificate without requiring it.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypeVar

import grpc

from ...core.errors import ConfigError
from ...core.settings.live_file import LiveFile
from .access_config import ServerTlsFiles

_log = logging.getLogger(__name__)

T = TypeVar("T")


class HttpTls:
    """TLS context of an HTTPS server; each handshake uses the newest one made from the files."""

    def __init__(self, files: ServerTlsFiles) -> None:
        self._watched = _TlsFiles(files, _ssl_context)
        self.context = self._watched.newest()
        # OpenSSL calls it for every handshake, also where the client names no server.
        self.context.sni_callback = self._choose

    def _choose(self, connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _context: ssl.SSLContext) -> None:
        # This replaces the certificate authorities of the handshake, too.
        connection.context = self._watched.newest()


class GrpcTls:
    def __init__(self, files: ServerTlsFiles) -> None:
        self._watched = _TlsFiles(files, _grpc_configuration)
        self._given = self._watched.newest()
        self.credentials: grpc.ServerCredentials = grpc.dynamic_ssl_server_credentials(
            self._given,
            self._newer,  # pyright: ignore[reportArgumentType] - it may return None, says gRPC
            require_client_authentication=files.client_ca is not None,
        )

    def _newer(self) -> grpc.ServerCertificateConfiguration | None:
        """Return a new configuration, or None to keep the current one; called by gRPC before each handshake."""
        newest = self._watched.newest()
        if newest is self._given:
            return None
        self._given = newest
        return newest


class _TlsFiles(LiveFile[T]):
    """Object made from files; with invalid files the last valid object stays in use."""

    def __init__(self, files: ServerTlsFiles, make: Callable[[ServerTlsFiles], T]) -> None:
        others = [file for file in (files.key, files.client_ca) if file is not None]
        super().__init__(files.certificate, lambda _: make(files), lambda _: others)

    def newest(self) -> T:
        self.refresh(datetime.now(UTC))
        if self.current is None:
            raise ConfigError("\n".join(self.errors))
        return self.current

    def accepted(self, content: T) -> None:  # noqa: ARG002 - named as in the base class
        _log.info("%s is in use", self.path)

    def refused(self) -> None:
        # Certificate and key do not match while the files are replaced one after the other.
        if self.current is not None:
            _log.error("%s; the previous certificate stays in use", "; ".join(self.errors))


def _ssl_context(files: ServerTlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Endless renegotiation would cost the server more than the client.
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    try:
        # Without this, OpenSSL would ask for the password of a key on the terminal.
        context.load_cert_chain(files.certificate, files.key, password="")
    except OSError as error:  # ssl.SSLError is one
        fix = "give a certificate and its own key, without a password, as PEM"
        msg = f"access.tls: {files.certificate} and {files.key} cannot be used ({_reason(error)}); {fix}"
        raise ConfigError(msg) from error
    if files.client_ca is not None:
        context.verify_mode = ssl.CERT_OPTIONAL
        try:
            context.load_verify_locations(files.client_ca)
        except OSError as error:
            msg = f"access.tls.client_ca: {files.client_ca} cannot be used ({_reason(error)}); give certificates as PEM"
            raise ConfigError(msg) from error
    return context


def _grpc_configuration(files: ServerTlsFiles) -> grpc.ServerCertificateConfiguration:
    # gRPC accepts invalid files silently and then refuses every connection.
    _ssl_context(files)
    pair = (files.key.read_bytes(), files.certificate.read_bytes())
    return grpc.ssl_server_certificate_configuration(
        [pair], root_certificates=files.client_ca.read_bytes() if files.client_ca else None
    )


def _reason(error: OSError) -> str:
    return (error.reason if isinstance(error, ssl.SSLError) else error.strerror) or str(error)
