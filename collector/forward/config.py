"""Forwarding configuration: the section `forward:` of the collector's file, with destinations, headers and secrets.

forward:
  destinations:
    - name: tempo
      endpoint: https://tempo.example.com:4318     # /v1/traces, /v1/metrics and /v1/logs are added
      protocol: http                               # or grpc, with an endpoint such as http://tempo:4317 or https://…
      signals: [traces]                            # default: metrics, traces and logs
      headers:
        X-Scope-OrgID: team-a
        Authorization: {env: TEMPO_AUTHORIZATION}  # or {file: /run/secrets/tempo}: the whole value of the header
      tls: {ca_file: /etc/ca.pem, cert_file: /etc/client.pem, key_file: /etc/client.key}
      compression: gzip                            # or none; over http also zstd
      timeout: 10s
      most_waiting: 512MiB
      when_full: refuse                            # or drop_oldest
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, cast

import httpx

from ...core.egress import ENV, CallTls, EgressPolicy, file_at, is_header, read_call_tls
from ...core.errors import ConfigError, StagelensError
from ...core.settings.values import parse_size
from ...core.settings.yaml_config import Document, Fields, Place
from ..otlp.responses import ExportSignal

AGENT = f"stagelens/{metadata.version('stagelens')}"
_SET_BY_US = frozenset(
    {"content-type", "content-encoding", "content-length", "host", "user-agent", "x-stagelens-via", "te"}
)
# https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md: other names are reserved, or have binary values.
_IS_METADATA = re.compile(r"(?!grpc-)[0-9a-z_.-]+(?<!-bin)")


class SecretError(StagelensError):
    """The secret of a header is missing."""


@dataclass(frozen=True, slots=True)
class Secret:
    """Source of a secret header value: an environment variable, or a file that is read for each use."""

    env: str = ""
    file: Path | None = None


def read_headers(fields: Fields, env: Mapping[str, str], protocol: str) -> tuple[dict[str, str], dict[str, Secret]]:
    """Read the key `headers` of *fields*: plain headers and secrets; errors become problems of the document."""
    plain, secrets = dict[str, str](), dict[str, Secret]()
    inner = fields.mapping("headers", example="X-Scope-OrgID: team-a") if fields.has("headers") else None
    for name in inner.keys if inner and not inner.broken else ():
        assert inner is not None  # noqa: S101 - it has keys
        if isinstance(inner.value(name), dict):
            secrets[name] = _secret(inner, name, env)
            shown = "x"
        else:
            plain[name] = shown = inner.text(name)
        if name.lower() in _SET_BY_US:
            inner.complain(f"{inner.name(name)} is set by Stagelens; remove it", name)
        elif not is_header(name, shown):
            inner.complain(f"{inner.name(name)} is no header; write plain letters", name)
        elif protocol == "grpc" and not _IS_METADATA.fullmatch(name.lower()):
            inner.complain(
                f"{inner.name(name)} is no metadata of gRPC; write letters, digits, -, _ and . in its name", name
            )
    return plain, secrets


def _secret(headers: Fields, name: str, env: Mapping[str, str]) -> Secret:
    inner = headers.mapping(name, example="env: TEMPO_AUTHORIZATION")
    assert inner is not None  # noqa: S101 - it is a mapping
    secret = Secret(inner.text("env"), file_at(inner, "file"))
    inner.finish()
    if bool(secret.env) == (secret.file is not None) and not inner.has("file"):
        inner.complain(f"{headers.name(name)} needs `env:` with the name of a variable, or `file:` with a path")
    elif secret.env and secret.file:
        inner.complain(f"{headers.name(name)} is given twice; keep env or file alone", "file")
    elif secret.env and not env.get(secret.env, "").strip():
        inner.complain(f"{inner.name('env')} is {secret.env}, which is not set", "env")
    return secret


def with_secrets(plain: Mapping[str, str], secrets: Mapping[str, Secret], env: Mapping[str, str]) -> dict[str, str]:
    """Return all headers, with the current secrets from *env* or files.

    Raises:
        SecretError: A secret is missing; the message names its source.
    """
    return {**plain, **{name: _found(name, secret, env) for name, secret in secrets.items()}}


def _found(name: str, secret: Secret, env: Mapping[str, str]) -> str:
    try:
        value = env.get(secret.env, "") if secret.file is None else secret.file.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        msg = f"{secret.file}, which the header {name} is to be in, cannot be read ({error})"
        raise SecretError(msg) from error
    value = value.strip()
    if not (value and value.isascii() and value.isprintable()):
        msg = f"{secret.file or secret.env} does not hold the one line of plain letters that the header {name} needs"
        raise SecretError(msg)
    return value


SIGNALS: tuple[ExportSignal, ...] = ("metrics", "traces", "logs")
_PROTOCOLS, _WHEN_FULL = ("http", "grpc"), ("refuse", "drop_oldest")
_COMPRESSIONS = ("gzip", "zstd", "none")
_EXAMPLES = {"http": "http://tempo:4318", "grpc": "http://tempo:4317"}
# OTEL_EXPORTER_OTLP_TIMEOUT is 10 s by default.
DEFAULT_TIMEOUT_SECONDS, MAX_TIMEOUT_SECONDS = 10.0, 60.0
DEFAULT_MOST_WAITING_BYTES = 512 * 1024**2
_MAX_NAME_CHARS = 64


@dataclass(frozen=True, slots=True)
class Destination:
    """A forwarding destination.

    Args:
        name: Name of the destination, and key of its backlog.
        endpoint: Base URL, for gRPC host and port; the path may contain a secret.
        signals: Signals to forward.
        protocol: OTLP protocol.
        headers: Headers sent with each request.
        secrets: Further headers whose values are secrets.
        tls: TLS verification and client certificate.
        compression: Compression of bodies.
        timeout: Timeout of one request. [seconds]
        most_waiting_bytes: Size limit of the backlog, compressed.
        when_full: Action at the limit: `refuse` makes senders retry, `drop_oldest` drops the oldest bodies.
        link_local: Whether metadata services of clouds are allowed.
    """

    name: str
    endpoint: str = field(repr=False)
    signals: tuple[ExportSignal, ...] = SIGNALS
    protocol: Literal["http", "grpc"] = "http"
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    secrets: Mapping[str, Secret] = field(default_factory=dict[str, Secret])
    tls: CallTls = field(default_factory=CallTls)
    compression: Literal["gzip", "zstd", "none"] = "gzip"
    timeout: float = DEFAULT_TIMEOUT_SECONDS
    most_waiting_bytes: int = DEFAULT_MOST_WAITING_BYTES
    when_full: Literal["refuse", "drop_oldest"] = "refuse"
    link_local: bool = False

    @property
    def is_local(self) -> bool:
        """Whether the destination is on this machine."""
        host = httpx.URL(self.endpoint).host
        return host in ("localhost", "::1") or host.startswith("127.")

    @property
    def place(self) -> str:
        """URL of the destination for display, without the path, which may contain a secret."""
        url = httpx.URL(self.endpoint)
        return f"{url.scheme}://{url.netloc.decode('ascii')}"


def read_destinations(
    document: Document, place: Place, value: Any, env: Mapping[str, str], egress_policy: EgressPolicy
) -> tuple[Destination, ...]:
    """Read the section `forward:`; destinations that are invalid or denied by *egress_policy* become problems of the document."""
    fields = Fields(document, place, value, example="destinations: []")
    found: dict[str, Destination] = {}
    for at, item in fields.items("destinations"):
        one = Fields(document, at, item, example="name: tempo")
        destination = _destination(one, env, egress_policy)
        if destination is None:
            continue
        if destination.name in found:
            one.complain(f"{destination.name} is a destination already; give each a name of its own", "name")
        found.setdefault(destination.name, destination)
    fields.finish()
    return tuple(found.values())


def _destination(fields: Fields, env: Mapping[str, str], egress_policy: EgressPolicy) -> Destination | None:
    if fields.broken:
        return None
    link_local = fields.value("allow_link_local") is True
    protocol = _one_of(fields, "protocol", _PROTOCOLS)
    name = fields.text("name", example="tempo")
    if len(name) > _MAX_NAME_CHARS or not name.isprintable():
        fields.complain(f"{fields.name('name')} is too long; {_MAX_NAME_CHARS} plain characters are the most", "name")
    headers, secrets = read_headers(fields, env, protocol)
    destination = Destination(
        name=name,
        endpoint=_endpoint(fields, protocol, egress_policy.with_kind("metadata") if link_local else egress_policy),
        protocol=cast("Any", protocol),
        signals=_signals(fields),
        headers=headers,
        secrets=secrets,
        tls=read_call_tls(fields),
        compression=cast("Any", _compression(fields, protocol)),
        timeout=_timeout(fields),
        most_waiting_bytes=_most_waiting(fields),
        when_full=cast("Any", _one_of(fields, "when_full", _WHEN_FULL)),
        link_local=link_local,
    )
    fields.finish()
    return destination if name and destination.endpoint else None


def _endpoint(fields: Fields, protocol: str, egress_policy: EgressPolicy) -> str:
    key, example = "endpoint", _EXAMPLES[protocol]
    written = fields.address(key, example=example)
    if not written:
        return ""
    try:
        url = httpx.URL(written)
    except (httpx.InvalidURL, ValueError):
        url = httpx.URL("")
    # The URL may contain a password or a key, so the message does not repeat it.
    if not url.host:
        fields.complain(f"{fields.name(key)} is no address; write one such as {example}", key)
    elif url.userinfo or url.query or url.fragment:
        fields.complain(f"{fields.name(key)} has a user or a query in it; send secrets as headers: instead", key)
    elif protocol == "grpc" and url.path.strip("/"):
        fields.complain(f"{fields.name(key)} has a path, and gRPC has none; write it as in {example}", key)
    elif url.path.rstrip("/").endswith(tuple(f"/v1/{signal}" for signal in SIGNALS)):
        fix = "write the address up to there, the paths of the signals are added"
        fields.complain(f"{fields.name(key)} ends in the path of one signal; {fix}", key)
    elif why := egress_policy.denial_reason(url.host):
        fix = (
            f"{ENV} lists allowed addresses, and `allow_link_local: true` allows a metadata service to this destination"
        )
        fields.complain(f"{fields.name(key)} is {why}, which is not allowed; {fix}", key)
    else:
        return str(url).rstrip("/")
    return ""


def _signals(fields: Fields) -> tuple[ExportSignal, ...]:
    written = fields.texts("signals", example="traces") if fields.has("signals") else list(SIGNALS)
    for wrong in (each for each in written if each not in SIGNALS):
        fields.complain(f"{fields.name('signals')} has {wrong!r}; write some of {', '.join(SIGNALS)}", "signals")
    return tuple(signal for signal in SIGNALS if signal in written)


def _one_of(fields: Fields, key: str, allowed: tuple[str, ...]) -> str:
    return (fields.one_of(key, allowed) if fields.has(key) else "") or allowed[0]


def _compression(fields: Fields, protocol: str) -> str:
    found = _one_of(fields, "compression", _COMPRESSIONS)
    if protocol == "grpc" and found == "zstd":
        fields.complain(
            f"{fields.name('compression')} is zstd, which gRPC does not know; write gzip or none", "compression"
        )
    return found


def _timeout(fields: Fields) -> float:
    given = fields.duration("timeout", example="10s", required=False)
    seconds = given.total_seconds() if given else DEFAULT_TIMEOUT_SECONDS
    if not 1 <= seconds <= MAX_TIMEOUT_SECONDS:
        limits = f"1s to {MAX_TIMEOUT_SECONDS:g}s"
        fields.complain(f"{fields.name('timeout')} is {seconds:g}s; write {limits}, such as 10s", "timeout")
    return seconds


def _most_waiting(fields: Fields) -> int:
    key, written = "most_waiting", fields.text("most_waiting")
    if not written:
        return DEFAULT_MOST_WAITING_BYTES
    try:
        size = parse_size(written, fields.name(key))
    except ConfigError as error:
        fields.complain(str(error), key)
        return DEFAULT_MOST_WAITING_BYTES
    if size < 1024**2:
        fields.complain(f"{fields.name(key)} is {written!r}; it must be at least 1MiB, such as 512MiB", key)
    return size
