"""Egress allow-list of the server: STAGELENS_MAY_CALL, a list of kinds of addresses, networks and host names.

public, private, loopback            the default: everything except cloud metadata services, which give out credentials
public                               nothing within private networks
10.0.0.0/8, hooks.slack.com          these, and nothing else
public, private, loopback, metadata  everything
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from ..errors import ConfigError, StagelensError

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
Kind: TypeAlias = Literal["public", "private", "loopback", "metadata"]

ENV = "STAGELENS_MAY_CALL"
KINDS: tuple[Kind, ...] = get_args(Kind)
_KIND_TEXT: dict[Kind, str] = {
    "public": "an address of the public internet",
    "private": "an address of a private network",
    "loopback": "this machine itself",
    "metadata": "an address at which clouds hand out credentials",
}
# Metadata services outside the link-local ranges (RFC 3927, RFC 4291):
_METADATA = frozenset(
    map(
        ipaddress.ip_address,
        (
            # https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-retrieval.html
            "fd00:ec2::254",
            # https://docs.aws.amazon.com/eks/latest/userguide/pod-id-agent-setup.html
            "fd00:ec2::23",
            # https://cloud.google.com/compute/docs/metadata/querying-metadata
            "fd20:ce::254",
            # https://learn.microsoft.com/azure/virtual-network/what-is-ip-address-168-63-129-16
            "168.63.129.16",
            # https://www.alibabacloud.com/help/en/ecs/user-guide/view-instance-metadata
            "100.100.100.200",
            # https://docs.oracle.com/iaas (of its first generation)
            "192.0.0.192",
        ),
    )
)
# https://cloud.google.com/compute/docs/metadata/querying-metadata; instance-data is Amazon's
_METADATA_NAMES = frozenset({"metadata", "metadata.google.internal", "metadata.goog", "instance-data"})
# RFC 6052, RFC 4291 2.5.5.1 and RFC 2765 2.1: the last 32 bits are an IPv4 address.
_WITH_IPV4 = tuple(map(ipaddress.IPv6Network, ("64:ff9b::/96", "::/96", "::ffff:0:0:0/96")))
# RFC 8215: these embed an IPv4 address at a position that only the local network knows.
_MAYBE_METADATA = ipaddress.IPv6Network("64:ff9b:1::/48")
# Python's ipaddress counts these as global: site-local (RFC 3879) and 6to4 relays (RFC 7526), both deprecated.
_PRIVATE = tuple(map(ipaddress.ip_network, ("fec0::/10", "192.88.99.0/24")))


class EgressDeniedError(StagelensError):
    """The egress allow-list does not contain an address."""


@dataclass(frozen=True, slots=True)
class EgressPolicy:
    """The addresses that the server may call.

    Args:
        kinds: Allowed kinds of addresses.
        networks: Allowed networks, of any kind.
        names: Allowed host names, whatever they resolve to except metadata services; `*.example.com` allows all subdomains.
    """

    kinds: frozenset[Kind] = frozenset({"public", "private", "loopback"})
    networks: tuple[Network, ...] = ()
    names: tuple[str, ...] = ()

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> EgressPolicy:
        """Read STAGELENS_MAY_CALL.

        Raises:
            ConfigError: It contains something other than kinds, networks and names.
        """
        words = [word for word in env.get(ENV, "").replace(",", " ").lower().split() if word]
        if not words:
            return cls()
        kinds = frozenset[Kind](kind for kind in KINDS if kind in words)
        others = [word for word in words if word not in KINDS]
        networks = {word: network for word in others if (network := _network(word))}
        names = tuple(word for word in others if word not in networks)
        for name in names:
            if not _is_name(name):
                msg = (
                    f"{ENV} has {name!r}; write kinds ({', '.join(KINDS)}), networks such as 10.0.0.0/8, "
                    "or names such as hooks.slack.com or *.example.com"
                )
                raise ConfigError(msg)
        return cls(kinds, tuple(networks.values()), names)

    def with_kind(self, kind: Kind) -> EgressPolicy:
        """Return the same policy with addresses of *kind* allowed."""
        return EgressPolicy(frozenset((*self.kinds, kind)), self.networks, self.names)

    def denial_reason(self, host: str, address: str | None = None) -> str:
        """Return a description of *host* if it may not be called, else "".

        Args:
            host: A name or an address.
            address: The address that the name resolves to; None if it was not resolved, which checks the name alone.

        >>> EgressPolicy().denial_reason("169.254.169.254"), EgressPolicy().denial_reason("llm", "::ffff:169.254.169.254")
        ('an address at which clouds hand out credentials', 'an address at which clouds hand out credentials')
        >>> EgressPolicy().denial_reason("10.0.0.7"), EgressPolicy().denial_reason("llm", "10.0.0.7"), EgressPolicy().denial_reason("llm")
        ('', '', '')
        """
        name = host.rstrip(".").lower()
        if name in _METADATA_NAMES and "metadata" not in self.kinds:
            return "a name of a cloud's metadata service"
        found = _address(address or host)
        if found is None or any(found in network for network in self.networks):
            return ""
        kind = kind_of(found)
        if kind in self.kinds or (kind != "metadata" and self._has(name)):
            return ""
        return _KIND_TEXT[kind]

    def check(self, host: str, addresses: Sequence[str]) -> None:
        """Check whether *host* may be called at each of *addresses*, to which it resolves.

        Raises:
            EgressDeniedError: It may not.
        """
        for address in addresses:
            if why := self.denial_reason(host, address):
                shown = host if host == address else f"{host} ({address})"
                msg = f"{shown} is {why}, which is not called; {ENV} says what is"
                raise EgressDeniedError(msg)

    def check_by_proxy(self, host: str) -> None:
        """Check whether a proxy, which resolves names itself, may be asked for *host*; a name counts as public.

        Raises:
            EgressDeniedError: It may not.
        """
        if _address(host) is None and "public" not in self.kinds and not self._has(host.rstrip(".").lower()):
            msg = f"{host} is not in {ENV}, and a proxy would look it up, so it is not called"
            raise EgressDeniedError(msg)

    def _has(self, name: str) -> bool:
        return any(name == each or (each.startswith("*.") and name.endswith(each[1:])) for each in self.names)


def kind_of(address: Address) -> Kind:
    """Return the kind of *address*, which must not be an IPv4 address embedded in IPv6."""
    if address.is_link_local or address in _METADATA or address in _MAYBE_METADATA:
        return "metadata"
    # Linux takes 0.0.0.0 for the machine itself.
    if address.is_loopback or address.is_unspecified:
        return "loopback"
    is_public = address.is_global and not address.is_multicast and not any(address in each for each in _PRIVATE)
    return "public" if is_public else "private"


def _address(text: str) -> Address | None:
    """Return the address in *text*, None for a name; an IPv4 address embedded in IPv6 is returned as IPv4."""
    try:
        address = ipaddress.ip_address(text.strip("[]").partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv4Address) or address.is_loopback or address.is_unspecified:
        return address
    if any(address in network for network in _WITH_IPV4):
        return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else address)


def _network(text: str) -> Network | None:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None


def _is_name(text: str) -> bool:
    # An invalid network such as 10.0.0.0/99 must not count as a host name.
    labels = text.removeprefix("*.").split(".")
    plain = all(label and label.isascii() and label.replace("-", "").replace("_", "").isalnum() for label in labels)
    return plain and not labels[-1].isdigit()
