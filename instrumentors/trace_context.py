"""W3C trace context: the headers `traceparent` and `tracestate` of a request, and those that are sent to the called services.

Inside a span of the user's own OpenTelemetry SDK that span is propagated, because ours exists only if the request is retained.
`tracestate` names the calling service (`stagelens=checkout`), only to hosts of the user's own network.

Source: https://www.w3.org/TR/trace-context/
"""

from __future__ import annotations

import functools
import os
import re
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from ..core.addresses import parse_ip
from .recorder_state import state
from .records import OPEN, SHARED, STATE

SAMPLED = 1
# Secret value of the header X-Force-Trace that retains the trace of the request; without this setting the header is ignored.
FORCE_VARIABLE = "STAGELENS_FORCE_TRACE"

# Version, trace id, parent id, flags; versions after 00 may add fields.
_TRACEPARENT = re.compile(r"(?!ff|00.{54})[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
TRACESTATE: Final = "tracestate"
OWN_ENTRY: Final = "stagelens="
# Additional hosts that get `tracestate`.
NAMED_TO_VARIABLE: Final = "STAGELENS_PROPAGATE_TO"
# Names of Kubernetes services, RFC 6762, RFC 6761, RFC 8375, and the name that ICANN reserved for private networks in 2024.
_PRIVATE_NAMES: Final = (".svc", ".local", ".localhost", ".home.arpa", ".internal")
_LOCAL_TARGETS: Final = ("unix:", "unix-abstract:", "vsock:")
_RESOLVERS: Final = ("dns", "ipv4", "ipv6", "passthrough", "xds")
# Limit of a value, and the longest encoding of one character.
_MAX_VALUE, _MAX_ENCODED = 256, 12
# Called hosts whose result is cached.
_MAX_HOSTS = 1024


class Parent(NamedTuple):
    trace_id: str
    span_id: str
    flags: int


def parse(traceparent: str) -> Parent | None:
    """Parse a `traceparent` header; return None if it is missing or invalid.

    >>> parse("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    Parent(trace_id='0af7651916cd43dd8448eb211c80319c', span_id='b7ad6b7169203331', flags=1)
    """
    match = _TRACEPARENT.fullmatch(traceparent.strip())
    if match is None or not match[1].strip("0") or not match[2].strip("0"):
        return None
    return Parent(match[1], match[2], int(match[3], 16))


def traceparent(marks: list[Any]) -> str:
    """Return the `traceparent` header for an outgoing call of the request of *marks*; "" if propagation is disabled."""
    if not _propagates or marks[STATE] != OPEN:
        # A worker that a finished request has started runs outside of any request.
        return ""
    span: Parent | None = state.user_span() if state.user_span is not None else None
    if span is not None:
        return f"00-{span.trace_id}-{span.span_id}-{span.flags:02x}"
    keys = marks[::3]
    if SHARED in keys:
        # A batch is shared by several requests with different traces.
        return ""
    parent = parent_of({key: marks[3 * keys.index(key) + 1] for key in ("@parent", "@traceparent") if key in keys})
    if "@trace" not in keys:
        fresh = os.urandom(24).hex()
        marks.extend(("@trace", (parent.trace_id if parent else fresh[:32], fresh[32:]), 0))
    # Two concurrent calls may both have created ids: all use the first ones.
    ids = marks[3 * marks[::3].index("@trace") + 1]
    return f"00-{ids[0]}-{ids[1]}-{parent.flags if parent else SAMPLED:02x}"


def parent_of(facts: dict[str, Any]) -> Parent | None:
    """Return the parent span of a request with these *facts*: the user's own span around the request, or the span of the caller."""
    given = facts.get("@traceparent")
    return facts.get("@parent") or (parse(given) if isinstance(given, str) else None)


def trace_draw(facts: dict[str, Any]) -> int | None:
    """Return the second half of the trace id of a request with these *facts*; None for a request without calls and caller.

    >>> hex(trace_draw({"@traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"}) or 0)
    '0x8448eb211c80319c'
    """
    ids, parent = facts.get("@trace"), facts.get("@parent")
    if not ids and not parent and "@traceparent" not in facts:
        return None
    try:
        trace_id = ids[0] if ids else parent.trace_id if parent else facts["@traceparent"].strip()[3:35]
        return int(trace_id[16:], 16)
    except (KeyError, ValueError, AttributeError):
        return None


def is_forced(header: str) -> bool:
    wanted = os.environ.get(FORCE_VARIABLE, "")
    return bool(wanted) and header == wanted


def tracestate(service: str) -> str:
    """Return the `tracestate` header of calls from *service*.

    >>> tracestate("check out, v=2")
    'stagelens=check%20out%2C%20v%3D2'
    """
    value = ""
    for char in service:
        if len(value) > _MAX_VALUE - _MAX_ENCODED:
            break
        value += quote(char, safe="/", errors="replace")
    return OWN_ENTRY + value


@functools.lru_cache(_MAX_HOSTS)
def tracestate_to(host: str) -> str:
    if not may_name_service_to(host, os.environ.get(NAMED_TO_VARIABLE, "")):
        return ""
    from .config import service_name  # noqa: PLC0415 - not loaded with every Python process of a command

    return tracestate(service_name(os.environ))


@functools.lru_cache(_MAX_HOSTS)
def tracestate_to_target(target: str | bytes) -> str:
    return tracestate_to(host_of_target(target if isinstance(target, str) else target.decode()))


def may_name_service_to(host: str, listed: str) -> bool:
    """Return whether the name of this service may be sent to *host*: a host of a private network, or one that is *listed*.

    >>> may_name_service_to("checkout.shop.svc", ""), may_name_service_to("api.example.com", "")
    (True, False)
    >>> may_name_service_to("api.example.com", "*.example.com, *.example.org")
    True
    """
    name = host.lower().removesuffix(".")
    if not name:
        return False
    if any(fnmatchcase(name, pattern.strip().lower()) for pattern in listed.split(",")):
        return True
    address = parse_ip(name)
    if address is None:
        return "." not in name or name.endswith(_PRIVATE_NAMES)
    return (getattr(address, "ipv4_mapped", None) or address).is_private


def host_of_target(target: str) -> str:
    """Return the first host of a gRPC *target*, "" if unknown.

    Source: https://grpc.github.io/grpc/core/md_doc_naming.html

    >>> [host_of_target(each) for each in ("dns://8.8.8.8/a.svc:50051", "ipv6:[::1]:50051", "b:8001", "unix:/run/c")]
    ['a.svc', '::1', 'b', 'localhost']
    """
    if target.startswith(_LOCAL_TARGETS):
        return "localhost"
    scheme, _, rest = target.partition(":")
    address = rest if scheme in _RESOLVERS else target
    if address.startswith("//"):
        # An address of the resolver may stand before the target.
        address = address[2:].partition("/")[2]
    if "://" in address:
        return ""
    return urlsplit(f"//{address.partition(',')[0]}").hostname or ""


def caller_of(header: str) -> str:
    """Return the service that the header `tracestate` names; "" for none.

    >>> caller_of("other=1, stagelens=check%20out")
    'check out'
    """
    for entry in header.split(","):
        name, _, value = entry.strip().partition("=")
        if name == OWN_ENTRY[:-1]:
            return unquote(value)
    return ""


_propagates = "false" not in os.environ.get("STAGELENS_PROPAGATE", "").lower() and (
    "true" not in os.environ.get("OTEL_SDK_DISABLED", "").lower()
)
