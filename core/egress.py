"""Outbound calls of the server: egress allow-list, TLS files and the HTTP transport that applies both.

STAGELENS_MAY_CALL is a list of kinds of addresses, networks and host names:

public, private, loopback            the default: all addresses except cloud metadata services, which return credentials
public                               no addresses in private networks
10.0.0.0/8, hooks.slack.com          only this network and this host
public, private, loopback, metadata  all addresses

`CheckedTransport` connects only to addresses that were resolved and checked, so DNS rebinding has no effect. httpx follows
redirects only on request, and each one is checked. A proxy of the environment resolves names itself; in this case the host in the
URL is checked, and a name counts as public.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias, get_args

import httpx
from pydantic import BeforeValidator, ValidationInfo

from .addresses import Address, Network, parse_ip, parse_network
from .errors import ConfigError, StagelensError
from .settings.field_types import ExistingFile, reject
from .settings.section import Fault, Section

ENV = "STAGELENS_MAY_CALL"
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
# Python's ipaddress counts these as global: site-local (RFC 3879) and 6to4 relays (RFC 7526), both deprecated.
_PRIVATE = tuple(map(ipaddress.ip_network, ("fec0::/10", "192.88.99.0/24")))
_PORTS = {"http": 80, "https": 443}


class CallTls(Section):
    """PEM files of outbound TLS; defaults are the system's certificate authorities and no client certificate."""

    example = "ca_file: /etc/ca.pem"

    ca_file: ExistingFile | None = None
    cert_file: ExistingFile | None = None
    key_file: ExistingFile | None = None

    def faults(self) -> Iterator[Fault]:
        if (self.cert_file is None) != (self.key_file is None):
            yield Fault("cert_file", "and key_file belong together; write both")

    def context(self) -> ssl.SSLContext:
        """Return a new TLS context; the files are read again by each call. OSError if one cannot be used."""
        context = ssl.create_default_context(cafile=self.ca_file)
        if self.cert_file is not None:
            # Without the argument, OpenSSL would ask for a password on the terminal.
            context.load_cert_chain(self.cert_file, self.key_file, password="")
        return context


class CallSection(Section):
    """Section about calls to an address, which its validator reads with `call_url`."""

    # Whether metadata services of clouds may be called
    allow_link_local: Annotated[bool, BeforeValidator(lambda value: value is True)] = False
    tls: CallTls = CallTls()  # TLS verification and client certificate


def call_url(text: str, info: ValidationInfo, example: str) -> httpx.URL:
    """Return the address *text* of a `CallSection`; its validator fails for an address that must not be called.

    *info* is that of a field after `allow_link_local`; without an `egress_policy` in its context every address may be called.
    """
    try:
        url = httpx.URL(text)
    except (httpx.InvalidURL, ValueError):
        url = httpx.URL("")
    policy: EgressPolicy | None = info.context and info.context["egress_policy"]
    if policy and info.data.get("allow_link_local"):
        policy = policy.with_kind("metadata")
    # The address may contain a secret: no message shows it.
    if not url.host:
        reject(f"is not a URL; write one such as {example}")
    elif policy and (why := policy.denial_reason(url.host)):
        reject(
            f"is {why}, which is not allowed; {ENV} lists allowed addresses, and `allow_link_local: true` next to it "
            "allows a metadata service"
        )
    return url


def is_header(name: str, value: str) -> bool:
    return name.isascii() and value.isascii() and (name + value).isprintable() and ":" not in name and " " not in name


Kind: TypeAlias = Literal["public", "private", "loopback", "metadata"]

KINDS: tuple[Kind, ...] = get_args(Kind)
_KIND_TEXT: dict[Kind, str] = {
    "public": "an address of the public internet",
    "private": "an address of a private network",
    "loopback": "this machine",
    "metadata": "an address of a cloud metadata service with credentials",
}
# RFC 8215: these embed an IPv4 address at a position that only the local network knows.
_MAYBE_METADATA = ipaddress.IPv6Network("64:ff9b:1::/48")


class EgressDeniedError(StagelensError):
    """The egress allow-list does not contain an address."""


@dataclass(frozen=True, slots=True)
class EgressPolicy:
    kinds: frozenset[Kind] = frozenset({"public", "private", "loopback"})  # Allowed kinds of addresses
    networks: tuple[Network, ...] = ()  # Allowed networks, of any kind
    # Allowed host names, whatever they resolve to except metadata services; `*.example.com` allows all subdomains
    names: tuple[str, ...] = ()

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> EgressPolicy:
        words = [word for word in env.get(ENV, "").replace(",", " ").lower().split() if word]
        if not words:
            return cls()
        kinds = frozenset[Kind](kind for kind in KINDS if kind in words)
        others = [word for word in words if word not in KINDS]
        networks = {word: network for word in others if (network := parse_network(word))}
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
        return EgressPolicy(frozenset((*self.kinds, kind)), self.networks, self.names)

    def denial_reason(self, host: str, address: str | None = None) -> str:
        """Return a description of *host* if it must not be called, else ""; without the *address* it resolves to, the name is checked.

        >>> EgressPolicy().denial_reason("169.254.169.254"), EgressPolicy().denial_reason("10.0.0.7"), EgressPolicy().denial_reason("llm")
        ('an address of a cloud metadata service with credentials', '', '')
        """
        name = host.rstrip(".").lower()
        if name in _METADATA_NAMES and "metadata" not in self.kinds:
            return "a name of a cloud's metadata service"
        ip_address = _address(address or host)
        if ip_address is None or any(ip_address in network for network in self.networks):
            return ""
        kind = kind_of(ip_address)
        if kind in self.kinds or (kind != "metadata" and self._has(name)):
            return ""
        return _KIND_TEXT[kind]

    def check(self, host: str, addresses: Sequence[str]) -> None:
        for address in addresses:
            if why := self.denial_reason(host, address):
                shown = host if host == address else f"{host} ({address})"
                msg = f"{shown} is {why}, which is not allowed; {ENV} lists allowed addresses"
                raise EgressDeniedError(msg)

    def check_by_proxy(self, host: str) -> None:
        """Check that *host* may be called by a proxy, which resolves names itself; a name counts as public."""
        if _address(host) is None and "public" not in self.kinds and not self._has(host.rstrip(".").lower()):
            msg = f"{host} is not in {ENV}, and a proxy would resolve it, so it is not allowed"
            raise EgressDeniedError(msg)

    def _has(self, name: str) -> bool:
        return any(
            name == pattern or (pattern.startswith("*.") and name.endswith(pattern[1:])) for pattern in self.names
        )


def kind_of(address: Address) -> Kind:
    """Return the kind of *address*, which must not be an IPv4 address embedded in IPv6."""
    if address.is_link_local or address in _METADATA or address in _MAYBE_METADATA:
        return "metadata"
    # Linux takes 0.0.0.0 for the machine itself.
    if address.is_loopback or address.is_unspecified:
        return "loopback"
    is_public = address.is_global and not address.is_multicast and not any(address in network for network in _PRIVATE)
    return "public" if is_public else "private"


def _address(text: str) -> Address | None:
    """Return the address in *text*, None for a name; an IPv4 address embedded in IPv6 is returned as IPv4."""
    address = parse_ip(text.strip("[]").partition("%")[0])
    if not isinstance(address, ipaddress.IPv6Address) or address.is_loopback or address.is_unspecified:
        return address
    if any(address in network for network in _WITH_IPV4):
        return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else address)


def _is_name(text: str) -> bool:
    # An invalid network such as 10.0.0.0/99 must not count as a host name.
    labels = text.removeprefix("*.").split(".")
    plain = all(label and label.isascii() and label.replace("-", "").replace("_", "").isalnum() for label in labels)
    return plain and not labels[-1].isdigit()


class CheckedTransport(httpx.AsyncBaseTransport):
    """Transport for one host; connections are pooled by address, so a second host must have its own transport."""

    def __init__(
        self, egress_policy: EgressPolicy, *, verify: ssl.SSLContext | bool = True, proxy: str | None = None
    ) -> None:
        self._egress_policy, self._proxied = egress_policy, proxy is not None
        self._inner = httpx.AsyncHTTPTransport(verify=verify, proxy=proxy)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send *request* to the first address of its host that accepts the connection."""
        host = request.url.host
        self._egress_policy.check(host, [host])
        if self._proxied:
            self._egress_policy.check_by_proxy(host)
            return await self._inner.handle_async_request(request)
        try:
            addresses = await addresses_of(request.url, self._egress_policy)
        except OSError as error:
            raise httpx.ConnectError(str(error), request=request) from error
        for address in addresses[:-1]:
            try:
                return await self._inner.handle_async_request(_at(address, request))
            except (httpx.ConnectError, httpx.ConnectTimeout):
                continue
        return await self._inner.handle_async_request(_at(addresses[-1], request))

    async def aclose(self) -> None:
        await self._inner.aclose()


async def addresses_of(url: httpx.URL, egress_policy: EgressPolicy) -> list[str]:
    egress_policy.check(url.host, [url.host])
    try:
        addresses = await asyncio.get_running_loop().getaddrinfo(url.host, port_of(url), type=socket.SOCK_STREAM)
    except UnicodeError as error:
        raise OSError(str(error)) from error
    texts = list(dict.fromkeys(str(entry[4][0]) for entry in addresses))
    egress_policy.check(url.host, texts)
    return texts


def port_of(url: httpx.URL) -> int:
    return url.port or _PORTS.get(url.scheme, 0)


def _at(address: str, request: httpx.Request) -> httpx.Request:
    return httpx.Request(
        request.method,
        request.url.copy_with(host=address),
        headers=request.headers,
        stream=request.stream,
        extensions=request.extensions | {"sni_hostname": request.url.host},
    )
