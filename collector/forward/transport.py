"""Transport of the forwarder: outcomes of sending a body, and the OTLP/HTTP transport.

Bodies are sent in their original encoding. Source: OpenTelemetry protocol specification, "OTLP/HTTP Response": 429, 502, 503 and 504
are retried after Retry-After; other failures concern the body and would repeat. 408 is retried as well (the body arrived too slowly),
and so are 401, 403 and redirects: they are caused by settings, and no body should be lost for them.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Literal, Protocol, TypeAlias

import httpx
import zstandard
from google.protobuf import json_format
from google.protobuf.message import DecodeError, Message
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from ...core.egress import CheckedTransport, EgressDeniedError, EgressPolicy, proxy_of
from ...store.outgoing import Outgoing
from ..otlp.responses import JSON
from .config import AGENT, Destination

# Length of a destination's message in logs and pages.
_MAX_SHOWN_CHARS = 200
# Shorter header values are not secrets, and redacting them would damage unrelated words.
_MIN_SECRET_CHARS = 8
_RESPONSES: dict[str, tuple[type[Message], str]] = {
    "metrics": (ExportMetricsServiceResponse, "rejected_data_points"),
    "traces": (ExportTraceServiceResponse, "rejected_spans"),
    "logs": (ExportLogsServiceResponse, "rejected_log_records"),
}


@dataclass(frozen=True, slots=True)
class Accepted:
    """The destination accepted the body.

    Args:
        rejected: Number of points, spans or records it rejected.
        said: Its explanation.
    """

    rejected: int = 0
    said: str = ""


@dataclass(frozen=True, slots=True)
class Refused:
    """The destination refuses the body permanently.

    Args:
        said: Explanation.
        why: `refused`, `returned` if the body came from there, or `unreadable` if it cannot be converted for the protocol.
    """

    said: str
    why: Literal["refused", "returned", "unreadable"] = "refused"


@dataclass(frozen=True, slots=True)
class Retry:
    """The body must be sent again: the reason *why*, and the delay in *seconds* if the destination requested one."""

    why: str
    seconds: float | None = None


SendOutcome: TypeAlias = Accepted | Refused | Retry


class Transport(Protocol):
    """Connection to one destination, for one event loop."""

    async def post(self, body: Outgoing, headers: Mapping[str, str]) -> SendOutcome:
        """Send *body* with *headers*; outcomes never contain header values."""
        ...

    async def aclose(self) -> None:
        """Close its connections."""
        ...


def inflate_body(body: Outgoing) -> bytes:
    """Return the inflated *body*."""
    return zstandard.ZstdDecompressor().decompress(body.body)


def accepted_outcome(signal: str, answer: bytes, headers: Mapping[str, str], *, is_json: bool = False) -> Accepted:
    """Return the outcome of an accepted body from the response *answer*; an invalid response counts as full success."""
    kind, rejected = _RESPONSES[signal]
    response = kind()
    try:
        if is_json:
            json_format.Parse(answer or b"{}", response, ignore_unknown_fields=True)
        else:
            response.ParseFromString(answer)
    except (DecodeError, json_format.ParseError, UnicodeDecodeError):
        return Accepted()
    partial = getattr(response, "partial_success")  # noqa: B009 - of all three, which have no type in common
    return Accepted(max(int(getattr(partial, rejected)), 0), redacted(str(partial.error_message), headers))


def redacted(text: str, headers: Mapping[str, str]) -> str:
    """Return *text* of a destination as one line, without the values of *headers*."""
    for secret in sorted(headers.values(), key=len, reverse=True):
        if len(secret) >= _MIN_SECRET_CHARS:
            text = text.replace(secret, "…")
    return "".join(each if each.isprintable() else " " for each in " ".join(text.split()))[:_MAX_SHOWN_CHARS]


_AGAIN = frozenset({408, 429, 502, 503, 504})
_SETTINGS_ERRORS = frozenset({401, 403})
_FIXES = {401: "look at its headers", 403: "look at its headers", 404: "look at its endpoint and signals"}
# Size limit of a response.
_MAX_ANSWER_BYTES = 64 * 1024


class HttpTransport:
    """The way to a destination over HTTP; its TLS files are read now.

    Args:
        destination: Whom to send to.
        egress_policy: Whom it may be.

    Raises:
        OSError: The TLS files cannot be used.
    """

    def __init__(self, destination: Destination, egress_policy: EgressPolicy) -> None:
        url = httpx.URL(destination.endpoint)
        verify = url.scheme == "https" and destination.tls.context()
        transport = CheckedTransport(egress_policy, verify=verify, proxy=proxy_of(url))
        self._destination = destination
        self._client = httpx.AsyncClient(transport=transport, trust_env=False, timeout=None)  # noqa: S113 - see `post`

    async def post(self, body: Outgoing, headers: Mapping[str, str]) -> SendOutcome:
        """Send *body* with *headers*."""
        content, encoding = _encoded(body, self._destination.compression)
        sent = {**headers, "Content-Type": body.media_type, "User-Agent": AGENT, "Accept-Encoding": "identity"}
        if encoding:
            sent["Content-Encoding"] = encoding
        url = f"{self._destination.endpoint}/v1/{body.signal}"
        try:
            async with (
                asyncio.timeout(self._destination.timeout),
                self._client.stream("POST", url, content=content, headers=sent) as response,
            ):
                answer = bytearray()
                async for piece in response.aiter_raw():
                    answer += piece
                    if len(answer) > _MAX_ANSWER_BYTES:
                        break
                return _judged(response, body.signal, bytes(answer), headers)
        except EgressDeniedError as error:
            return Retry(str(error))
        except TimeoutError:
            return Retry(f"it does not answer within {self._destination.timeout:g} s")
        except httpx.HTTPError as error:
            return Retry(f"it cannot be reached ({str(error) or type(error).__name__})")

    async def aclose(self) -> None:
        """Close its connections."""
        await self._client.aclose()


def _encoded(body: Outgoing, compression: str) -> tuple[bytes, str]:
    match compression:
        case "zstd":
            return body.body, "zstd"
        case "gzip":
            return zlib.compress(inflate_body(body), 1, 16 + zlib.MAX_WBITS), "gzip"
        case _:
            return inflate_body(body), ""


def _judged(response: httpx.Response, signal: str, answer: bytes, headers: Mapping[str, str]) -> SendOutcome:
    if response.is_success:
        is_json = response.headers.get("content-type", "").partition(";")[0].strip() == JSON
        return accepted_outcome(signal, answer, headers, is_json=is_json)
    status = response.status_code
    said = redacted(_words(response, answer), headers)
    text = f"it answers {status}" + (f": {said}" if said else "")
    if cure := _FIXES.get(status):
        text = f"{text}; {cure}"
    if response.is_redirect:
        return Retry(f"it redirects elsewhere ({status}), which is not followed; write the address it redirects to")
    if status in _AGAIN | _SETTINGS_ERRORS:
        return Retry(text, _retry_after(response))
    return Refused(text, "returned" if status == HTTPStatus.LOOP_DETECTED else "refused")


def _words(response: httpx.Response, answer: bytes) -> str:
    """Return why it says it failed."""
    if "protobuf" in response.headers.get("content-type", ""):
        try:
            return Status.FromString(answer).message
        except DecodeError:
            return ""
    return answer.decode(errors="replace")


def _retry_after(response: httpx.Response) -> float | None:
    text = response.headers.get("retry-after", "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        return max(0.0, (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError, OverflowError):
        return None
