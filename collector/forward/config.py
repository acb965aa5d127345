"""Forwarding configuration: the section `forward:` of the collector's file (docs/forwarding.md)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from importlib import metadata
from typing import Annotated, Any, Literal

import httpx
from pydantic import BeforeValidator, Field, PlainValidator, ValidationInfo, field_validator

from ...core.addresses import is_loopback
from ...core.egress import CallSection, EgressPolicy, call_url, is_header
from ...core.errors import StagelensError
from ...core.settings import field_types
from ...core.settings.section import Fault, Section, read_section
from ...core.settings.yaml_config import Document, Place
from ..otlp.model import ExportSignal

AGENT = f"stagelens/{metadata.version('stagelens')}"
_SET_BY_US = frozenset(
    {"content-type", "content-encoding", "content-length", "host", "user-agent", "x-stagelens-via", "te"}
)
# https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md: other names are reserved, or have binary values.
_IS_METADATA = re.compile(r"(?!grpc-)[0-9a-z_.-]+(?<!-bin)")


class SecretError(StagelensError):
    """The secret of a header is missing."""


class HeaderSecret(Section):
    """Source of a secret header value: an environment variable, or a file that is read for each use."""

    example = "env: TEMPO_AUTHORIZATION"

    env: field_types.Text = ""
    file: field_types.ExistingFile | None = None

    @field_validator("env")
    @classmethod
    def _is_set(cls, value: str, info: ValidationInfo) -> str:
        if info.context and not info.context["env"].get(value, "").strip():
            field_types.reject(f"is {value}, which is not set")
        return value

    def faults(self) -> Iterator[Fault]:
        if self.env and self.file:
            yield Fault("file", "and env are both set; keep one")
        elif not self.env and not self.file:
            yield Fault("", "needs `env:` with the name of a variable, or `file:` with a path")

    def value(self, header: str, env: Mapping[str, str]) -> str:
        try:
            value = env.get(self.env, "") if self.file is None else self.file.read_text(encoding="utf-8")
        except (OSError, UnicodeError) as error:
            msg = f"the file {self.file} of the header {header} cannot be read ({error})"
            raise SecretError(msg) from error
        value = value.strip()
        if not (value and value.isascii() and value.isprintable()):
            msg = f"{self.file or self.env} must contain one line of ASCII characters for the header {header}"
            raise SecretError(msg)
        return value


def _header_value(value: Any, info: ValidationInfo) -> str | HeaderSecret:
    if isinstance(value, dict | HeaderSecret):
        return HeaderSecret.model_validate(value, context=info.context)
    return field_types.as_text(value)


SIGNALS: tuple[ExportSignal, ...] = ("metrics", "traces", "logs")
_EXAMPLES = {"http": "http://tempo:4318", "grpc": "http://tempo:4317"}
_MAX_TIMEOUT = timedelta(minutes=1)
_MAX_NAME_CHARS = 64


def _signals(value: Any) -> tuple[str, ...]:
    found = field_types.as_texts(value)
    if wrong := [each for each in found if each not in SIGNALS]:
        field_types.reject(f"has {wrong[0]!r}; write some of {', '.join(SIGNALS)}")
    return tuple(signal for signal in SIGNALS if signal in found)


class Destination(CallSection):
    """A forwarding destination.

    Args:
        endpoint: Base URL, for gRPC host and port; the path may contain a secret.
        most_waiting: Size limit of the backlog, compressed. [bytes]
        when_full: Action at the limit: `refuse` makes senders retry, `drop_oldest` drops the oldest bodies.
    """

    example = "name: tempo"

    name: field_types.Text = Field(examples=["tempo"])
    protocol: Literal["http", "grpc"] = "http"
    endpoint: field_types.WebAddress = Field(default="", repr=False)
    signals: Annotated[tuple[ExportSignal, ...], BeforeValidator(_signals)] = Field(
        default=SIGNALS, examples=["[traces]"]
    )
    headers: field_types.Entries[Annotated[str | HeaderSecret, PlainValidator(_header_value)]] = Field(
        default={}, examples=["X-Scope-OrgID: team-a"], repr=False
    )
    compression: Literal["gzip", "zstd", "none"] = "gzip"
    # OTEL_EXPORTER_OTLP_TIMEOUT is 10 s by default.
    timeout: field_types.Duration = Field(default=timedelta(seconds=10), examples=["10s"])
    most_waiting: field_types.Size = Field(default=512 * 1024**2, examples=["512MiB"])
    when_full: Literal["refuse", "drop_oldest"] = "refuse"

    @field_validator("endpoint")
    @classmethod
    def _base_url(cls, value: str, info: ValidationInfo) -> str:
        protocol = info.data.get("protocol", "http")
        url = call_url(value, info, _EXAMPLES[protocol])
        if url.userinfo or url.query or url.fragment:
            field_types.reject("contains a user or a query; put secrets into headers:")
        if protocol == "grpc" and url.path.strip("/"):
            field_types.reject(f"has a path, which gRPC does not support; write a URL such as {_EXAMPLES[protocol]}")
        if url.path.rstrip("/").endswith(tuple(f"/v1/{signal}" for signal in SIGNALS)):
            field_types.reject("ends with the path of one signal; remove this path, Stagelens adds it")
        return str(url).rstrip("/")

    @field_validator("most_waiting")
    @classmethod
    def _useful(cls, value: int) -> int:
        if value < 1024**2:
            field_types.reject_value("it must be at least 1MiB")
        return value

    def faults(self) -> Iterator[Fault]:
        if not self.endpoint:
            yield Fault("endpoint", f"is missing; add `endpoint: {_EXAMPLES[self.protocol]}`")
        if len(self.name) > _MAX_NAME_CHARS or not self.name.isprintable():
            yield Fault("name", f"is not a valid name; use at most {_MAX_NAME_CHARS} printable characters")
        if self.protocol == "grpc" and self.compression == "zstd":
            yield Fault("compression", "is zstd, which gRPC does not support; write gzip or none")
        if not timedelta(seconds=1) <= self.timeout <= _MAX_TIMEOUT:
            limits = f"1s to {_MAX_TIMEOUT.total_seconds():g}s"
            yield Fault("timeout", f"is {self.timeout.total_seconds():g}s; write {limits}, such as 10s")
        for name, value in self.headers.items():
            if name.lower() in _SET_BY_US:
                yield Fault(("headers", name), "is set by Stagelens; remove it")
            elif not is_header(name, value if isinstance(value, str) else ""):
                yield Fault(("headers", name), "is not a valid header; use ASCII characters")
            elif self.protocol == "grpc" and not _IS_METADATA.fullmatch(name.lower()):
                text = "is not valid gRPC metadata; use letters, digits, -, _ and . in the name"
                yield Fault(("headers", name), text)

    def current_headers(self, env: Mapping[str, str]) -> dict[str, str]:
        return {
            name: value if isinstance(value, str) else value.value(name, env) for name, value in self.headers.items()
        }

    @property
    def is_local(self) -> bool:
        return is_loopback(httpx.URL(self.endpoint).host)

    @property
    def place(self) -> str:
        """URL of the destination for display, without the path, which may contain a secret."""
        url = httpx.URL(self.endpoint)
        return f"{url.scheme}://{url.netloc.decode('ascii')}"


class _Forwarding(Section):
    example = "destinations: []"

    destinations: tuple[Destination, ...] = ()

    def faults(self) -> Iterator[Fault]:
        names = [destination.name for destination in self.destinations]
        for position, name in enumerate(names):
            if name in names[:position]:
                text = f"is {name!r}, the name of another destination; use unique names"
                yield Fault(("destinations", position, "name"), text)


def read_destinations(
    document: Document, place: Place, value: Any, env: Mapping[str, str], egress_policy: EgressPolicy
) -> tuple[Destination, ...]:
    """Read the section `forward:`; destinations that are invalid or denied by *egress_policy* become problems of the document."""
    found = read_section(_Forwarding, document, place, value, {"env": env, "egress_policy": egress_policy})
    return found.destinations if found else ()
