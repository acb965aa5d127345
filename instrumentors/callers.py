"""The service that sent a request, which calls name in the W3C header `tracestate`: `stagelens=checkout`.

Only hosts of the user's own network get the header, because the name of a service is nothing that third parties should know.

Source: https://www.w3.org/TR/trace-context/#tracestate-header
"""

from __future__ import annotations

import functools
import os
from fnmatch import fnmatchcase
from typing import Final
from urllib.parse import quote, unquote, urlsplit

from ..core.addresses import parse_ip
from .config import service_name

TRACESTATE: Final = "tracestate"
OWN_ENTRY: Final = "stagelens="
ENV: Final = "STAGELENS_PROPAGATE_TO"
# Names of Kubernetes services, RFC 6762, RFC 6761, RFC 8375, and the name that ICANN reserved for private networks in 2024.
_PRIVATE_NAMES: Final = (".svc", ".local", ".localhost", ".home.arpa", ".internal")
_LOCAL_TARGETS: Final = ("unix:", "unix-abstract:", "vsock:")
_RESOLVERS: Final = ("dns", "ipv4", "ipv6", "passthrough", "xds")
# Limit of a value, and the longest encoding of one character.
_MAX_VALUE, _MAX_ENCODED = 256, 12


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


# Called hosts whose result is cached.
_MAX_HOSTS = 1024


@functools.lru_cache(_MAX_HOSTS)
def tracestate_to(host: str) -> str:
    """Return the `tracestate` header of calls from this service to *host*; "" for a host that does not get it."""
    return tracestate(service_name(os.environ)) if may_name_service_to(host, os.environ.get(ENV, "")) else ""


@functools.lru_cache(_MAX_HOSTS)
def tracestate_to_target(target: str | bytes) -> str:
    """Return the result of `tracestate_to` for the host of a gRPC *target*."""
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
    if any(fnmatchcase(name, each.strip().lower()) for each in listed.split(",")):
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
