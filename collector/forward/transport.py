"""Transports of the forwarder: OTLP/HTTP and OTLP/gRPC, and the outcomes of sending a body.

HTTP sends bodies in their original encoding. Source: OpenTelemetry protocol specification, "OTLP/HTTP Response": 429, 502, 503 and 504
are retried after Retry-After; other failures are caused by the body and permanent. 408 is retried as well (the body arrived too
slowly), and so are 401, 403 and redirects: they are caused by settings, and no body should be lost because of a wrong setting.

gRPC sends protobuf unchanged; JSON is converted into protobuf. Source: "OTLP/gRPC Response" and "OTLP/gRPC Throttling": retryable codes,
RESOURCE_EXHAUSTED only with a RetryInfo, which gives the delay. UNAUTHENTICATED and PERMISSION_DENIED are retried as well. "JSON
Protobuf Encoding": OTLP JSON differs from the JSON mapping of protobuf by hexadecimal ids of traces and spans; other bytes are base64
in both. Unknown fields are dropped.

Calls use the threads of gRPC instead of grpc.aio, which shares one socket between the event loops of a process and therefore, at
least up to version 1.78, fills the log with errors (https://github.com/grpc/grpc/issues/25364).
"""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import json
import ssl
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, Literal, Protocol, TypeAlias

import grpc
import httpx
import zstandard
from google.protobuf import json_format
from google.protobuf.message import DecodeError, EncodeError, Message
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from ...core.egress import CallTls, CheckedTransport, EgressDeniedError, EgressPolicy, addresses_of, port_of
from ...core.errors import StagelensError, WireError
from ...core.proxies import proxy_of, through_proxy
from ...store.collectors import Outgoing
from ..otlp.json_encoding import identifier
from ..otlp.model import JSON
from ..server.grpc_server import SERVICES
from .config import AGENT, Destination

# Maximum length of a destination's message in logs and pages. [characters]
_MAX_SHOWN_CHARS = 200
# Shorter header values are not secrets, and redacting them would damage unrelated words.
_MIN_SECRET_CHARS = 8
_RESPONSES: dict[str, tuple[type[Message], str]] = {
    "metrics": (ExportMetricsServiceResponse, "rejected_data_points"),
    "traces": (ExportTraceServiceResponse, "rejected_spans"),
    "logs": (ExportLogsServiceResponse, "rejected_log_records"),
}


@dataclass(frozen=True, slots=True)
class Delivered:
    rejected: int = 0
    said: str = ""


@dataclass(frozen=True, slots=True)
class Refused:
    """The destination refuses the body permanently.

    Args:
        why: `refused`, `returned` if the destination detected a loop, or `unreadable` if the body cannot be converted for the
            protocol.
    """

    said: str
    why: Literal["refused", "returned", "unreadable"] = "refused"


@dataclass(frozen=True, slots=True)
class Retry:
    """The body must be sent again; *why* is the reason, and *seconds* the delay that the destination requested, if any."""

    why: str
    seconds: float | None = None


SendOutcome: TypeAlias = Delivered | Refused | Retry


class Transport(Protocol):
    """Interface of a connection to one destination, for use in one event loop."""

    async def post(self, body: Outgoing, headers: Mapping[str, str]) -> SendOutcome:
        """Send *body* with *headers*; outcomes never contain header values."""
        ...

    async def aclose(self) -> None: ...


def inflate_body(body: Outgoing) -> bytes:
    return zstandard.ZstdDecompressor().decompress(body.body)


def accepted_outcome(signal: str, body: bytes, headers: Mapping[str, str], *, is_json: bool = False) -> Delivered:
    """Return the outcome of an accepted body for the response *body*; an invalid response counts as full success."""
    kind, rejected = _RESPONSES[signal]
    response = kind()
    try:
        if is_json:
            json_format.Parse(body or b"{}", response, ignore_unknown_fields=True)
        else:
            response.ParseFromString(body)
    except (DecodeError, json_format.ParseError, UnicodeDecodeError):
        return Delivered()
    partial = getattr(response, "partial_success")  # noqa: B009 - of all three, which have no type in common
    return Delivered(max(int(getattr(partial, rejected)), 0), redacted(str(partial.error_message), headers))


def redacted(text: str, headers: Mapping[str, str]) -> str:
    """Return the message *text* of a destination as one line, without the values of *headers*."""
    for secret in sorted(headers.values(), key=len, reverse=True):
        if len(secret) >= _MIN_SECRET_CHARS:
            text = text.replace(secret, "…")
    return "".join(each if each.isprintable() else " " for each in " ".join(text.split()))[:_MAX_SHOWN_CHARS]


_RETRYABLE_STATUSES = frozenset({408, 429, 502, 503, 504})
_SETTINGS_STATUSES = frozenset({401, 403})
_STATUS_FIXES = {401: "check its headers", 403: "check its headers", 404: "check its endpoint and signals"}
# Size limit of a response.
_MAX_ANSWER_BYTES = 64 * 1024


class HttpTransport:
    """HTTP client for one destination; the TLS files are read at creation."""

    def __init__(self, destination: Destination, egress_policy: EgressPolicy) -> None:
        url = httpx.URL(destination.endpoint)
        verify = url.scheme == "https" and destination.tls.context()
        transport = CheckedTransport(egress_policy, verify=verify, proxy=proxy_of(str(url)) or None)
        self._destination = destination
        self._client = httpx.AsyncClient(transport=transport, trust_env=False, timeout=None)  # noqa: S113 - see `post`

    async def post(self, body: Outgoing, headers: Mapping[str, str]) -> SendOutcome:
        content, encoding = _encoded(body, self._destination.compression)
        sent = {**headers, "Content-Type": body.media_type, "User-Agent": AGENT, "Accept-Encoding": "identity"}
        if encoding:
            sent["Content-Encoding"] = encoding
        url = f"{self._destination.endpoint}/v1/{body.signal}"
        try:
            async with (
                asyncio.timeout(self._destination.timeout.total_seconds()),
                self._client.stream("POST", url, content=content, headers=sent) as response,
            ):
                received = bytearray()
                async for piece in response.aiter_raw():
                    received += piece
                    if len(received) > _MAX_ANSWER_BYTES:
                        break
                return _response_outcome(response, body.signal, bytes(received), headers)
        except EgressDeniedError as error:
            return Retry(str(error))
        except TimeoutError:
            return Retry(f"it does not respond within {self._destination.timeout.total_seconds():g} s")
        except httpx.HTTPError as error:
            through = through_proxy(self._destination.endpoint)
            return Retry(f"it cannot be reached{through} ({str(error) or type(error).__name__})")

    async def aclose(self) -> None:
        await self._client.aclose()


def _encoded(body: Outgoing, compression: str) -> tuple[bytes, str]:
    match compression:
        case "zstd":
            return body.body, "zstd"
        case "gzip":
            return zlib.compress(inflate_body(body), 1, 16 + zlib.MAX_WBITS), "gzip"
        case _:
            return inflate_body(body), ""


def _response_outcome(response: httpx.Response, signal: str, body: bytes, headers: Mapping[str, str]) -> SendOutcome:
    if response.is_success:
        is_json = response.headers.get("content-type", "").partition(";")[0].strip() == JSON
        return accepted_outcome(signal, body, headers, is_json=is_json)
    status = response.status_code
    message = redacted(_response_text(response, body), headers)
    text = f"it returns {status}" + (f": {message}" if message else "")
    if fix := _STATUS_FIXES.get(status):
        text = f"{text}; {fix}"
    if response.is_redirect:
        return Retry(f"it redirects ({status}), which is not followed; use the final address")
    if status in _RETRYABLE_STATUSES | _SETTINGS_STATUSES:
        return Retry(text, _retry_after(response))
    return Refused(text, "returned" if status == HTTPStatus.LOOP_DETECTED else "refused")


def _response_text(response: httpx.Response, body: bytes) -> str:
    if "protobuf" in response.headers.get("content-type", ""):
        try:
            return Status.FromString(body).message
        except DecodeError:
            return ""
    return body.decode(errors="replace")


def _retry_after(response: httpx.Response) -> float | None:
    text = response.headers.get("retry-after", "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        return max(0.0, (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError, OverflowError):
        return None


_REQUESTS: dict[str, type[Message]] = {
    "metrics": ExportMetricsServiceRequest,
    "traces": ExportTraceServiceRequest,
    "logs": ExportLogsServiceRequest,
}
# Ids of spans, links, log records and exemplars. Attribute names are never keys of an object, but values of `key`.
_IDS = {"traceId", "spanId", "parentSpanId", "trace_id", "span_id", "parent_span_id"}


def protobuf_of(signal: str, body: bytes) -> bytes:
    try:
        root = json.loads(body, object_hook=_with_base64)
        return json_format.ParseDict(root, _REQUESTS[signal](), ignore_unknown_fields=True).SerializeToString()
    except (ValueError, RecursionError, json_format.ParseError, EncodeError) as error:
        raise WireError(str(error)) from error


def _with_base64(node: dict[str, Any]) -> dict[str, Any]:
    for key in _IDS & node.keys():
        node[key] = base64.b64encode(bytes.fromhex(identifier(node, key))).decode()
    return node


_METHODS: dict[str, str] = {signal: f"/{service}/Export" for service, signal in SERVICES.items()}
_RETRYABLE_CODES = frozenset(
    {
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DATA_LOSS,
    }
)
_SETTINGS_CODES = frozenset({grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED})
_CODE_FIXES = dict.fromkeys(_SETTINGS_CODES, "check its headers") | {
    grpc.StatusCode.UNIMPLEMENTED: "check its endpoint and signals"
}
_DETAILS = "grpc-status-details-bin"


class UnresolvedError(StagelensError):
    """The host of a destination cannot be resolved."""


class GrpcTransport:
    """gRPC channel to a destination; the TLS files are read at creation."""

    def __init__(self, destination: Destination, addresses: Sequence[str]) -> None:
        url = httpx.URL(destination.endpoint)
        options = (
            # The channel connects to an address; TLS and the authority use the host name.
            ("grpc.ssl_target_name_override", url.host),
            ("grpc.default_authority", url.netloc.decode("ascii")),
            ("grpc.primary_user_agent", AGENT),
            ("grpc.enable_http_proxy", 0),
            # `DestinationSender` retries.
            ("grpc.enable_retries", 0),
            # A new channel must not reuse connections and certificates of an old one.
            ("grpc.use_local_subchannel_pool", 1),
        )
        is_gzip = destination.compression == "gzip"
        compression = grpc.Compression.Gzip if is_gzip else grpc.Compression.NoCompression
        where = _target(addresses, port_of(url))
        self._channel = (
            grpc.secure_channel(where, _credentials(destination.tls), options, compression)
            if url.scheme == "https"
            else grpc.insecure_channel(where, options, compression)
        )
        self._timeout = destination.timeout.total_seconds()
        self._exports = {signal: self._channel.unary_unary(method) for signal, method in _METHODS.items()}

    async def post(self, body: Outgoing, headers: Mapping[str, str]) -> SendOutcome:
        try:
            message = await asyncio.to_thread(_message, body)
        except WireError as error:
            reason = redacted(str(error), headers)
            return Refused(f"it cannot be written as protobuf, which gRPC needs: {reason}", "unreadable")
        metadata = tuple((name.lower(), value) for name, value in headers.items())
        call = self._exports[body.signal].future(message, self._timeout, metadata)
        await _wait_for_call(call)
        if call.code() is grpc.StatusCode.OK:
            return accepted_outcome(body.signal, call.result(), headers)
        return _failure_outcome(call, headers)

    async def aclose(self) -> None:
        self._channel.close()


async def open_grpc_transport(destination: Destination, egress_policy: EgressPolicy) -> GrpcTransport:
    """Return a transport to *destination* that uses the current addresses of its host.

    Raises:
        EgressDeniedError: One of the addresses is not allowed by *egress_policy*.
        UnresolvedError: The host cannot be resolved.
        OSError: The TLS files cannot be used.
    """
    try:
        async with asyncio.timeout(destination.timeout.total_seconds()):
            addresses = await addresses_of(httpx.URL(destination.endpoint), egress_policy)
    except OSError as error:  # TimeoutError is one
        msg = f"it cannot be reached ({str(error) or type(error).__name__})"
        raise UnresolvedError(msg) from error
    return GrpcTransport(destination, addresses)


async def _wait_for_call(call: Any) -> None:
    """Wait until *call* has ended; cancellation of the task cancels the call."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    call.add_done_callback(lambda _call: loop.call_soon_threadsafe(ended.set))
    try:
        await ended.wait()
    finally:
        call.cancel()
        # The callback of the gRPC thread needs the running loop.
        await ended.wait()


def _message(body: Outgoing) -> bytes:
    content = inflate_body(body)
    return protobuf_of(body.signal, content) if body.media_type == JSON else content


def _failure_outcome(call: Any, headers: Mapping[str, str]) -> SendOutcome:
    code, seconds = call.code(), _retry_seconds(call)
    details = redacted(call.details() or "", headers)
    text = f"the call ends with {code.name}" + (f": {details}" if details else "")
    if fix := _CODE_FIXES.get(code):
        text = f"{text}; {fix}"
    if code in _RETRYABLE_CODES | _SETTINGS_CODES or (
        code is grpc.StatusCode.RESOURCE_EXHAUSTED and seconds is not None
    ):
        return Retry(text, seconds)
    return Refused(text, "returned" if code is grpc.StatusCode.ALREADY_EXISTS else "refused")


def _retry_seconds(call: Any) -> float | None:
    """Return the retry delay requested by the destination, in seconds; None if there is none."""
    encoded = next((value for key, value in call.trailing_metadata() or () if key == _DETAILS), b"")
    info = RetryInfo()
    try:
        found = any(detail.Unpack(info) for detail in Status.FromString(encoded).details)
    except DecodeError:
        return None
    return max(info.retry_delay.seconds + info.retry_delay.nanos / 1e9, 0.0) if found else None


def _target(addresses: Sequence[str], port: int) -> str:
    """Return *addresses* and the port in the syntax of gRPC: all of one family, with IPv4-mapped IPv6 addresses if needed."""
    found = [ipaddress.ip_address(each.partition("%")[0]) for each in addresses]
    if all(each.version == 4 for each in found):  # noqa: PLR2004 - IPv4
        return "ipv4:" + ",".join(f"{each}:{port}" for each in found)
    return "ipv6:" + ",".join(f"[{each if each.version == 6 else f'::ffff:{each}'}]:{port}" for each in found)  # noqa: PLR2004


def _credentials(tls: CallTls) -> grpc.ChannelCredentials:
    # gRPC accepts invalid files silently, and without files it uses its own certificate authorities, not those of the system.
    context = tls.context()
    system = "".join(map(ssl.DER_cert_to_PEM_cert, context.get_ca_certs(binary_form=True))).encode()
    return grpc.ssl_channel_credentials(
        tls.ca_file.read_bytes() if tls.ca_file else system or None,
        tls.key_file.read_bytes() if tls.key_file else None,
        tls.cert_file.read_bytes() if tls.cert_file else None,
    )
