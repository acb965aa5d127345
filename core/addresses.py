"""Addresses to listen on: which of them nobody else can reach."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Say whether *host* can be reached from this machine only.

    >>> is_loopback("localhost"), is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("0.0.0.0")
    (True, True, True, False)
    """
    return host == "localhost" or bool((address := address_of(host)) and address.is_loopback)


def address_of(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the address that *host* spells; None for a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
