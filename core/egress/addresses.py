"""Whom the server may call: STAGELENS_MAY_CALL, a list of kinds of addresses, networks and names of hosts.

public, private, loopback            the default: everything but where clouds hand out credentials to whoever asks from inside
public                               nothing within one's own networks
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
_SAID: dict[Kind, str] = {
    "public": "an address of the public internet",
    "private": "an address of a private network",
    "loopback": "this machine itself",
    "metadata": "an address at which clouds hand out credentials",
}
# Beside all that is link-local (RFC 3927, RFC 4291), where most of them are:
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
# RFC 6052, RFC 4291 2.5.5.1 and RFC 2765 2.1: the last 32 bits are an address of IPv4.
_WITH_IPV4 = tuple(map(ipaddress.IPv6Network, ("64:ff9b::/96", "::/96", "::ffff:0:0:0/96")))
# RFC 8215: an address of IPv4 is somewhere in these, and only the network knows where.
_MAYBE_METADATA = ipaddress.IPv6Network("64:ff9b:1::/48")
# What Python's ipaddress takes for global: site-local (RFC 3879) and the way to 6to4 relays (RFC 7526), both given up.
_PRIVATE = tuple(map(ipaddress.ip_network, ("fec0::/10", "192.88.99.0/24")))


class NotCalledError(StagelensError):
    """An address that may not be called."""


@dataclass(frozen=True, slots=True)
class MayCall:
    """Whom the server may call.

    Args:
        kinds: Addresses by their kind.
        networks: Addresses by their network, of any kind.
        names: Hosts by their name, wherever it leads but to metadata; `*.example.com` is all below example.com.
    """

    kinds: frozenset[Kind] = frozenset({"public", "private", "loopback"})
    networks: tuple[Network, ...] = ()
    names: tuple[str, ...] = ()

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> MayCall:
        """Read STAGELENS_MAY_CALL.

        Raises:
            ConfigError: There is something else in it.
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

    def also(self, kind: Kind) -> MayCall:
        """Return the same with addresses of *kind*."""
        return MayCall(frozenset((*self.kinds, kind)), self.networks, self.names)

    def why_not(self, host: str, address: str | None = None) -> str:
        """Return what *host* is if it may not be called, else nothing.

        Args:
            host: As it is written: a name or an address.
            address: Where the name leads, if it was looked up; else only what shows without that is found.

        >>> MayCall().why_not("169.254.169.254"), MayCall().why_not("llm", "::ffff:169.254.169.254")
        ('an address at which clouds hand out credentials', 'an address at which clouds hand out credentials')
        >>> MayCall().why_not("10.0.0.7"), MayCall().why_not("llm", "10.0.0.7"), MayCall().why_not("llm")
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
        return _SAID[kind]

    def check(self, host: str, addresses: Sequence[str]) -> None:
        """Look whether *host* may be called at all of *addresses*, where its name leads.

        Raises:
            NotCalledError: It may not.
        """
        for address in addresses:
            if why := self.why_not(host, address):
                shown = host if host == address else f"{host} ({address})"
                msg = f"{shown} is {why}, which is not called; {ENV} says what is"
                raise NotCalledError(msg)

    def check_by_proxy(self, host: str) -> None:
        """Look whether a proxy, which looks names up itself, may be asked for *host*: a name is taken for a public one.

        Raises:
            NotCalledError: It may not.
        """
        if _address(host) is None and "public" not in self.kinds and not self._has(host.rstrip(".").lower()):
            msg = f"{host} is not in {ENV}, and a proxy would look it up, so it is not called"
            raise NotCalledError(msg)

    def _has(self, name: str) -> bool:
        return any(name == each or (each.startswith("*.") and name.endswith(each[1:])) for each in self.names)


def kind_of(address: Address) -> Kind:
    """Return the kind of *address*, which is no IPv4 in the clothes of IPv6."""
    if address.is_link_local or address in _METADATA or address in _MAYBE_METADATA:
        return "metadata"
    # Linux takes 0.0.0.0 for the machine itself.
    if address.is_loopback or address.is_unspecified:
        return "loopback"
    is_public = address.is_global and not address.is_multicast and not any(address in each for each in _PRIVATE)
    return "public" if is_public else "private"


def _address(text: str) -> Address | None:
    """Return the address that *text* is, None for a name; of an IPv6 one that leads to IPv4, that one."""
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
    # What looks like a network and is none must not be taken for a name nobody ever has.
    labels = text.removeprefix("*.").split(".")
    plain = all(label and label.isascii() and label.replace("-", "").replace("_", "").isalnum() for label in labels)
    return plain and not labels[-1].isdigit()
