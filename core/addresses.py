"""IP addresses: parsing and loopback detection."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Return whether *host* can be reached only from this machine.

    >>> is_loopback("localhost"), is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("0.0.0.0")
    (True, True, True, False)
    """
    return host == "localhost" or bool((address := parse_ip(host)) and address.is_loopback)


def parse_ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return *host* as an IP address; None for a host name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
