"""IP addresses: parsing, loopback detection, and the address or network that counts as one client."""

from __future__ import annotations

import ipaddress

# Prefix length of the IPv6 network of one client, which can use any address of the network. [bits]
_IPV6_PREFIX_BITS = 64


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


def without_port(address: str) -> str:
    """Return *address* without the port that some proxies add to it in X-Forwarded-For.

    >>> without_port("10.0.0.7:5678"), without_port("[2001:db8::1]:80"), without_port("2001:db8::1")
    ('10.0.0.7', '2001:db8::1', '2001:db8::1')
    """
    if address.startswith("["):
        return address[1:].partition("]")[0]
    return address.partition(":")[0] if address.count(":") == 1 else address


def client_of(address: str) -> str:
    """Return the address or network that stands for one client in per-client limits.

    >>> client_of("10.0.0.7"), client_of("::ffff:10.0.0.7"), client_of("2001:db8::1:2:3:4")
    ('10.0.0.7', '10.0.0.7', '2001:db8::/64')
    """
    found = parse_ip(address)
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(ipaddress.ip_network((found, _IPV6_PREFIX_BITS), strict=False))
    return address
