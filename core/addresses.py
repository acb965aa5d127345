"""Addresses: IP addresses, URLs of a host and a port, and names as a part of a path."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from typing import TypeAlias
from urllib.parse import quote, unquote

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

# Proxies reject, decode or normalize these characters of a path even if they are percent-encoded, and browsers `.` and `..`.
_UNSAFE = re.compile(r"[\x00-\x1f\x7f/\\%?#;~]|^\.(?=\.?$)")
# No user, path or second host, which some programs ignore and others do not.
_AUTHORITY = re.compile(r"(?:(https?)://)?(\[[0-9a-f:.%]+\]|[^][:@/?#\\,\s]+)(?::([0-9]{1,5}))?")
_ESCAPED = re.compile(r"~([0-7][0-9A-F])")


def is_loopback(host: str) -> bool:
    """Return whether *host* can be reached only from this machine.

    >>> is_loopback("localhost"), is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("0.0.0.0")
    (True, True, True, False)
    """
    return host == "localhost" or bool((address := parse_ip(host)) and address.is_loopback)


def parse_ip(host: str) -> Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def parse_network(text: str) -> Network | None:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None


def parse_authority(text: str) -> tuple[str, str, str]:
    """Return scheme, host and port in an `Origin` or `Host` header; a missing part, and each part of other texts, is "".

    >>> parse_authority("http://LOCALHOST:8700"), parse_authority("[::1]"), parse_authority("http://localhost:1@evil")
    (('http', 'localhost', '8700'), ('', '::1', ''), ('', '', ''))
    """
    scheme, host, port = match.groups("") if (match := _AUTHORITY.fullmatch(text.lower())) else ("", "", "")
    return scheme, host.strip("[]"), port


def is_same_origin(origin: str, host: str, schemes: Sequence[str] = ("http", "https")) -> bool:
    """Return whether the header `Origin` has one of *schemes* and names the server of the header `Host`.

    >>> [is_same_origin(origin, "lens:443") for origin in ("https://lens", "http://lens:443", "http://lens", "https://lens.evil")]
    [True, True, False, False]
    """
    scheme, *page = parse_authority(origin)
    _, *server = parse_authority(host)
    default = {"http": "80", "https": "443"}.get(scheme, "")
    return scheme in schemes and [part or default for part in page] == [part or default for part in server]


def host_and_port(host: str, port: object) -> str:
    """Return *host* and *port* as they are written together.

    >>> host_and_port("127.0.0.1", 80), host_and_port("::1", 80)
    ('127.0.0.1:80', '[::1]:80')
    """
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def server_url(host: str, port: object, scheme: str = "http") -> str:
    """Return the URL that opens a server which listens on *host* and *port*, on this machine.

    >>> server_url("::1", 80), server_url("0.0.0.0", 80), server_url("fe80::1%eth0", 443, "https")
    ('http://[::1]:80', 'http://localhost:80', 'https://[fe80::1%25eth0]:443')
    """
    opened = "localhost" if (address := parse_ip(host)) and address.is_unspecified else host.replace("%", "%25")
    return f"{scheme}://{host_and_port(opened, port)}"


def listening_url(host: str, port: object, scheme: str = "http") -> str:
    """Return `server_url`, with a note if the server listens on every address of this machine.

    >>> listening_url("127.0.0.1", 80), listening_url("::", 80)
    ('http://127.0.0.1:80', 'http://localhost:80 (on all addresses of this machine)')
    """
    address = parse_ip(host)
    every = " (on all addresses of this machine)" if address and address.is_unspecified else ""
    return f"{server_url(host, port, scheme)}{every}"


def path_segment(name: str) -> str:
    r"""Return *name* as one segment of a path that browsers and proxies leave unchanged; `name_of_segment` is the inverse.

    >>> path_segment("ocr api"), path_segment("team/vision"), path_segment(".."), path_segment("~a")
    ('ocr%20api', 'team~2Fvision', '~2E.', '~7Ea')
    """
    return quote(_UNSAFE.sub(lambda match: f"~{ord(match[0]):02X}", name), safe="")


def name_of_segment(segment: str) -> str:
    """Return the name in a *segment* of a path, also of one in which it is only percent-encoded.

    >>> name_of_segment("team~2Fvision"), name_of_segment("team%2Fvision")
    ('team/vision', 'team/vision')
    """
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), unquote(segment))
