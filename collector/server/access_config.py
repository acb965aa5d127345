"""Access configuration (the section `access:` of the collector's file, or the one token in the environment), and TLS of the servers.

access:
  tls: {certificate: /etc/stagelens/tls.crt, key: /etc/stagelens/tls.key, client_ca: /etc/stagelens/clients.crt}
  tokens:
    - name: team-a
      token_file: /run/secrets/team-a      # or token_env: TEAM_A_TOKEN, or sha256: 64 hexadecimal digits
      environment: prod
      requests_per_second: 50
      bytes_per_second: 5MiB
  certificates:                            # default: every certificate that client_ca signed
    - {common_name: checkout.prod, environment: prod}
  anonymous: {requests_per_second: 5}

Without credentials the collector only listens on a loopback address, unless STAGELENS_COLLECTOR_OPEN allows more (`check_exposure`).

The HTTP and gRPC servers use the same TLS files; replaced files are used from the next connection on. Without `client_ca` no
certificate is requested. With it, HTTP requests one and `auth` decides (a token may replace it, and health probes, which have neither,
reach /livez); gRPC cannot request a certificate without requiring it.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import grpc

from ...core.addresses import is_loopback
from ...core.errors import ConfigError
from ...core.settings.live_file import stamp_of
from ...core.settings.values import parse_size
from ...core.settings.yaml_config import Document, Fields, Place, Problem, Secrets, spell

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RateLimits:
    """Rate limits of one client, averaged over `auth.BURST_SECONDS`; None for no limit.

    Args:
        requests_per_second: Exports and events.
        bytes_per_second: Bodies as received.
    """

    requests_per_second: float | None = None
    bytes_per_second: float | None = None


@dataclass(frozen=True, slots=True)
class Token:
    """A bearer token.

    Args:
        name: Name of its client; shown, unlike the token.
        digest: SHA-256 of the token; the token itself is not retained.
        environment: Environment that replaces the one in the client's resources; None to accept theirs.
        limits: Rate limits.
    """

    name: str
    digest: bytes = field(repr=False)
    environment: str | None = None
    limits: RateLimits = RateLimits()


@dataclass(frozen=True, slots=True)
class Certificate:
    """An admitted client certificate.

    Args:
        common_name: Common name of the certificate subject, used as the name of the client.
        environment: Environment that replaces the one in the client's resources; None to accept theirs.
        limits: Rate limits.
    """

    common_name: str
    environment: str | None = None
    limits: RateLimits = RateLimits()


@dataclass(frozen=True, slots=True)
class ServerTlsFiles:
    """The PEM files of a TLS server.

    Args:
        certificate: Server certificate, followed by intermediate certificates.
        key: Private key, without a password.
        client_ca: Authorities that sign client certificates; None requests no client certificate.
    """

    certificate: Path
    key: Path
    client_ca: Path | None = None


@dataclass(frozen=True, slots=True)
class Access:
    """Credentials and limits of clients.

    Args:
        tokens: Valid tokens.
        certificates: Admitted client certificates; empty admits all that `client_ca` signed.
        anonymous: Limits of an address without credentials, where that is allowed.
        tls: TLS files; None serves plain text.
    """

    tokens: tuple[Token, ...] = ()
    certificates: tuple[Certificate, ...] = ()
    anonymous: RateLimits = RateLimits()
    tls: ServerTlsFiles | None = None

    @property
    def asks(self) -> bool:
        """Whether clients need credentials."""
        return bool(self.tokens) or (self.tls is not None and self.tls.client_ca is not None)


Credential = TypeVar("Credential", Token, Certificate)

ENV_TOKEN = "STAGELENS_COLLECTOR_TOKEN"  # noqa: S105 - the name of the setting
ENV_TOKEN_FILE = "STAGELENS_COLLECTOR_TOKEN_FILE"  # noqa: S105
# 128 bits, the output of `openssl rand -hex 16`.
MIN_TOKEN_CHARS = 32
MAKE_ONE = "make one: openssl rand -hex 32"
_SHA256 = re.compile(r"[0-9a-fA-F]{64}")


@dataclass(frozen=True, slots=True)
class AccessSection:
    """Content of the section `access:`.

    Args:
        access: Credentials and limits of clients.
        files: Files with secrets; the configuration is read again when one of them changes.
    """

    access: Access = field(default_factory=Access)
    files: tuple[Path, ...] = ()


def read_access(
    document: Document, place: Place, value: Any, env: Mapping[str, str], held: dict[str, str]
) -> AccessSection:
    """Read the section `access:`; errors are added to the document's problems. `Secrets` describes *held*."""
    fields = Fields(document, place, value, example="tokens: [{name: team-a, token_env: TEAM_A_TOKEN}]")
    files: list[Path] = []

    def token(place: Place, item: Any) -> Token:
        return _read_token(document, Fields(document, place, item, example="name: team-a"), env, held, files)

    def certificate(place: Place, item: Any) -> Certificate:
        return _read_certificate(Fields(document, place, item, example="common_name: checkout.prod"))

    tokens = _read_items(fields, "tokens", token)
    certificates = _read_items(fields, "certificates", certificate)
    anonymous = fields.mapping("anonymous", example="requests_per_second: 5")
    tls = fields.mapping("tls", example="certificate: /etc/stagelens/tls.crt")
    access = Access(tokens, certificates, _anonymous_limits(anonymous), _read_tls(tls) if tls else None)
    if certificates and not (access.tls and access.tls.client_ca):
        fix = "set the CA under tls:, such as client_ca: /etc/stagelens/clients.crt"
        fields.complain(
            f"{fields.name('certificates')} requires certificates that are not verified; {fix}", "certificates"
        )
    fields.finish()
    _check_unique(document, (*place, "tokens"), (each.name for each in tokens), "called")
    _check_unique(document, (*place, "tokens"), (each.digest.hex() for each in tokens if each.digest), "")
    _check_unique(document, (*place, "certificates"), (each.common_name for each in certificates), "called")
    return AccessSection(access, tuple(files))


def tokens_from_env(env: Mapping[str, str]) -> tuple[Token, ...]:
    """Return the token in STAGELENS_COLLECTOR_TOKEN or in the file STAGELENS_COLLECTOR_TOKEN_FILE, if any.

    Raises:
        ConfigError: The token cannot be read, or is too short.
    """
    text, key = env.get(ENV_TOKEN, "").strip(), ENV_TOKEN
    path = env.get(ENV_TOKEN_FILE, "")
    if not text and path:
        key = ENV_TOKEN_FILE
        try:
            text = Path(path).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            msg = f"{key} is {path}, which cannot be read: {error}"
            raise ConfigError(msg) from error
    if not text and not path:
        return ()
    trouble = _token_fault(text)
    if trouble:
        msg = f"{key} {trouble}; {MAKE_ONE}"
        raise ConfigError(msg)
    return (Token("token", _digest(text)),)


def _read_items(fields: Fields, key: str, read_one: Callable[[Place, Any], Credential]) -> tuple[Credential, ...]:
    return tuple(read_one(place, item) for place, item in fields.items(key))


def _read_token(
    document: Document, fields: Fields, env: Mapping[str, str], held: dict[str, str], files: list[Path]
) -> Token:
    if fields.broken:
        return Token("", b"")
    name = fields.text("name", example="team-a")
    secrets = Secrets(document, fields, env, held)
    shown = fields.has("token")
    secret, written = secrets.take("token"), fields.text("sha256")
    files += secrets.files
    token = Token(name, b"", fields.optional("environment"), _read_limits(fields))
    fields.finish()
    if shown:
        fix = "put it into a file and write token_file: with its path, or write sha256: with its hash"
        fields.complain(f"{fields.name('token')} is in this file, where others can read it; {fix}", "token")
    elif secrets.lacking:
        fields.complain(f"{fields.name('token')} is not there: {secrets.lacking} holds nothing; {MAKE_ONE}")
    elif secret and written:
        fields.complain(f"{fields.name('sha256')} is given beside a token; keep one of them", "sha256")
    elif written:
        if _SHA256.fullmatch(written):
            return replace(token, digest=bytes.fromhex(written))
        # The value may be the token itself, so the message does not repeat it.
        fix = "write 64 hexadecimal digits, such as `printf %s <token> | sha256sum` prints"
        fields.complain(f"{fields.name('sha256')} is no SHA-256; {fix}", "sha256")
    elif not secret:
        fields.missing("token_env", "TEAM_A_TOKEN")
    elif trouble := _token_fault(secret):
        fields.complain(f"{fields.name('token')} {trouble}; {MAKE_ONE}")
    else:
        return replace(token, digest=_digest(secret))
    return token


def _token_fault(text: str) -> str:
    if len(text) < MIN_TOKEN_CHARS:
        return f"has {len(text)} characters, which can be guessed; it needs at least {MIN_TOKEN_CHARS}"
    return "" if text.isascii() and text.isprintable() and " " not in text else "is not one word of plain characters"


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _read_certificate(fields: Fields) -> Certificate:
    if fields.broken:
        return Certificate("")
    certificate = Certificate(
        fields.text("common_name", example="checkout.prod"), fields.optional("environment"), _read_limits(fields)
    )
    fields.finish()
    return certificate


def _anonymous_limits(fields: Fields | None) -> RateLimits:
    if fields is None or fields.broken:
        return RateLimits()
    limits = _read_limits(fields)
    fields.finish()
    return limits


def _read_limits(fields: Fields) -> RateLimits:
    size = fields.text("bytes_per_second")
    bytes_per_second: float | None = None
    if size:
        try:
            bytes_per_second = float(parse_size(size, fields.name("bytes_per_second"))) or None
        except ConfigError as error:
            fields.complain(str(error), "bytes_per_second")
        else:
            if bytes_per_second is None:
                text = f"{fields.name('bytes_per_second')} is {size!r}; it must be greater than zero, such as 5MiB"
                fields.complain(text, "bytes_per_second")
    return RateLimits(fields.amount("requests_per_second", example="50"), bytes_per_second)


def _read_tls(fields: Fields) -> ServerTlsFiles | None:
    if fields.broken:
        return None
    certificate = fields.text("certificate", example="/etc/stagelens/tls.crt")
    key = fields.text("key", example="/etc/stagelens/tls.key")
    client_ca = fields.optional("client_ca")
    fields.finish()
    for name, path in (("certificate", certificate), ("key", key), ("client_ca", client_ca)):
        if path and not Path(path).is_file():
            fields.complain(
                f"{fields.name(name)} is {path}, where there is no file; write the path of a PEM file", name
            )
    return ServerTlsFiles(Path(certificate), Path(key), Path(client_ca) if client_ca else None)


def _check_unique(document: Document, place: Place, names: Iterable[str], called: str) -> None:
    """Report duplicate *names* of the items at *place*; an empty *called* marks digests, which are not shown."""
    seen: dict[str, Place] = {}
    for position, name in enumerate(names):
        here = (*place, position)
        first = seen.setdefault(name, here)
        if first is here or not name:
            continue
        what = f"is called {name!r} like" if called else "has the same token as"
        text = f"{spell(here)} {what} {spell(first)}; give each its own"
        document.problems.append(Problem(document.line(here), text))


def check_exposure(host: str, access: Access, *, is_open: bool) -> None:
    """Refuse to listen on a *host* that other machines can reach if no credentials are required.

    Args:
        host: The address to listen on.
        access: Credentials of clients.
        is_open: Whether STAGELENS_COLLECTOR_OPEN allows access without credentials.

    Raises:
        ConfigError: The collector would be reachable without credentials; the message lists the fixes.
    """
    if is_loopback(host) or access.asks or is_open:
        return
    msg = (
        f"the collector would listen on {host}, where others can reach it, without authentication.\n"
        "    Set STAGELENS_COLLECTOR_TOKEN to a long secret that agents share (openssl rand -hex 32),\n"
        "    or name tokens or a client_ca under access: in the file STAGELENS_COLLECTOR_CONFIG names,\n"
        "    or set STAGELENS_COLLECTOR_OPEN=true if only permitted senders can reach it,\n"
        "    or listen on 127.0.0.1."
    )
    raise ConfigError(msg)


# Key of the ASGI scope for the common name of the client's certificate.
SCOPE_KEY = "stagelens.certificate"

Scope = MutableMapping[str, Any]
AsgiApplication = Callable[[Scope, Any, Any], Awaitable[None]]
T = TypeVar("T")


class HttpTls:
    """TLS context of an HTTPS server.

    Args:
        files: PEM files of the server.

    Attributes:
        context: TLS context; each handshake uses the newest context made from the files.

    Raises:
        ConfigError: The files cannot be used.
    """

    def __init__(self, files: ServerTlsFiles) -> None:
        self._watched = _ReloadedFiles(files, _ssl_context)
        self.context = self._watched.newest()
        # OpenSSL calls it for every handshake, also where the client names no server.
        self.context.sni_callback = self._choose

    def _choose(self, connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _context: ssl.SSLContext) -> None:
        # This replaces the certificate authorities of the handshake, too.
        connection.context = self._watched.newest()


class GrpcTls:
    """TLS credentials of a gRPC server.

    Args:
        files: PEM files of the server.

    Attributes:
        credentials: Argument of `add_secure_port`.

    Raises:
        ConfigError: The files cannot be used.
    """

    def __init__(self, files: ServerTlsFiles) -> None:
        self._watched = _ReloadedFiles(files, _grpc_configuration)
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


def certificate_of(transport: asyncio.BaseTransport) -> str:
    """Return the common name of the verified client certificate of *transport*, "" for none."""
    # The dictionary is empty unless the certificate was verified.
    shown: dict[str, Any] = transport.get_extra_info("peercert") or {}
    subject: tuple[tuple[tuple[str, str], ...], ...] = shown.get("subject", ())
    names = [value for part in subject for key, value in part if key == "commonName"]
    return names[-1] if names else ""


def with_certificate(application: AsgiApplication, certificate: str) -> AsgiApplication:
    """Return *application* with *certificate*, a common name, under `SCOPE_KEY` of each scope."""

    async def call(scope: Scope, receive: Any, send: Any) -> None:
        await application(scope | {SCOPE_KEY: certificate} if isinstance(scope, dict) else scope, receive, send)

    return call if certificate else application


class _ReloadedFiles(Generic[T]):
    """Object created from files and created again when they change; with invalid files the last valid object stays in use."""

    def __init__(self, files: ServerTlsFiles, make: Callable[[ServerTlsFiles], T]) -> None:
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
            # Certificate and key do not match while the files are replaced one after the other.
            _log.error("%s; the certificate read before is used on", error)
        else:
            _log.info("%s was read again", self._files.certificate)


def _stamps(files: ServerTlsFiles) -> list[tuple[int, int, int] | None]:
    paths = (files.certificate, files.key, files.client_ca)
    return [stamp_of(path) for path in paths if path is not None]


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
