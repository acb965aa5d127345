"""Addresses that are not asked unless somebody says so: those at which clouds hand out credentials to whoever asks from inside.

Loopback and private networks are where engines are, and are asked.
"""

from __future__ import annotations

import ipaddress

# https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-retrieval.html (IPv6),
# https://www.alibabacloud.com/help/en/ecs/user-guide/view-instance-metadata, https://docs.oracle.com/iaas (192.0.0.192)
_METADATA = frozenset(map(ipaddress.ip_address, ("fd00:ec2::254", "100.100.100.200", "192.0.0.192")))
# https://cloud.google.com/compute/docs/metadata/querying-metadata
_METADATA_NAMES = frozenset({"metadata", "metadata.google.internal", "metadata.goog", "instance-data"})


def forbidden(host: str) -> str:
    """Return what kind of address *host* is if it is not to be asked, else nothing; names are not looked up.

    >>> forbidden("169.254.169.254"), forbidden("::ffff:169.254.169.254"), forbidden("10.0.0.7"), forbidden("llm")
    ('a link-local address', 'a link-local address', '', '')
    """
    if host.rstrip(".").lower() in _METADATA_NAMES:
        return "a name of a metadata service"
    try:
        address = ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return ""
    address = getattr(address, "ipv4_mapped", None) or address
    if address.is_link_local:
        return "a link-local address"
    return "an address of a metadata service" if address in _METADATA else ""
