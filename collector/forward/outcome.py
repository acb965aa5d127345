"""What becomes of a body that is sent to a destination, over whichever protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

import zstandard
from google.protobuf import json_format
from google.protobuf.message import DecodeError, Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from ...store.outgoing import Outgoing

# What people are shown of what a destination says.
_MAX_SHOWN_CHARS = 200
# What is shorter is no secret, and would be struck out of words that have nothing to do with it.
_MIN_SECRET_CHARS = 8
_RESPONSES: dict[str, tuple[type[Message], str]] = {
    "metrics": (ExportMetricsServiceResponse, "rejected_data_points"),
    "traces": (ExportTraceServiceResponse, "rejected_spans"),
    "logs": (ExportLogsServiceResponse, "rejected_log_records"),
}


@dataclass(frozen=True, slots=True)
class Taken:
    """The destination has it.

    Args:
        rejected: How many points, spans or records of it it did not want.
        said: Why.
    """

    rejected: int = 0
    said: str = ""


@dataclass(frozen=True, slots=True)
class Refused:
    """The destination does not want it, now or ever.

    Args:
        said: Why.
        why: `refused`, `returned` where it has it already, for it was sent on from there, or `unreadable` where it cannot
            be written as the destination's protocol wants it.
    """

    said: str
    why: Literal["refused", "returned", "unreadable"] = "refused"


@dataclass(frozen=True, slots=True)
class Later:
    """It is to be sent again: *why*, and after how many *seconds* if the destination has told."""

    why: str
    seconds: float | None = None


Outcome: TypeAlias = Taken | Refused | Later


class Calls(Protocol):
    """The way to one destination, of one event loop."""

    async def post(self, body: Outgoing, headers: Mapping[str, str]) -> Outcome:
        """Send *body* with *headers*, whose values no outcome repeats."""
        ...

    async def aclose(self) -> None:
        """Close its connections."""
        ...


def inflated(body: Outgoing) -> bytes:
    """Return *body* as it came."""
    return zstandard.ZstdDecompressor().decompress(body.body)


def taken(signal: str, answer: bytes, headers: Mapping[str, str], *, is_json: bool = False) -> Taken:
    """Return what of a body that was taken was not wanted, by *answer*; one that cannot be read has nothing to say."""
    kind, rejected = _RESPONSES[signal]
    response = kind()
    try:
        if is_json:
            json_format.Parse(answer or b"{}", response, ignore_unknown_fields=True)
        else:
            response.ParseFromString(answer)
    except (DecodeError, json_format.ParseError, UnicodeDecodeError):
        return Taken()
    partial = getattr(response, "partial_success")  # noqa: B009 - of all three, which have no type in common
    return Taken(max(int(getattr(partial, rejected)), 0), shown(str(partial.error_message), headers))


def shown(text: str, headers: Mapping[str, str]) -> str:
    """Return *text* of a destination for people: one line, and without what our *headers* say."""
    for secret in sorted(headers.values(), key=len, reverse=True):
        if len(secret) >= _MIN_SECRET_CHARS:
            text = text.replace(secret, "…")
    return "".join(each if each.isprintable() else " " for each in " ".join(text.split()))[:_MAX_SHOWN_CHARS]
