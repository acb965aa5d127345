"""Proxy of an outbound call, from HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY, in either case, as in `requests`.

NO_PROXY lists hosts, which include their subdomains, `host:port`, addresses, networks such as 10.0.0.0/8, or `*`.

Source: https://requests.readthedocs.io/en/latest/user/advanced/#proxies
"""

from __future__ import annotations

from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from .addresses import host_and_port, parse_ip, parse_network


class ProxyError(OSError):
    """A proxy of the environment is not usable, or does not pass a call on."""

    def __init__(self, url: str, proxy: str, reason: str) -> None:
        parts = urlsplit(url)
        self.fix = f"Correct {parts.scheme.upper()}_PROXY or ALL_PROXY, or add {parts.hostname} to NO_PROXY"
        super().__init__(f"the proxy {shown_proxy(proxy)} {reason}")


def proxy_of(url: str) -> str:
    """Return the URL of the proxy for *url*; "" for a direct call. ProxyError if it is no HTTP proxy."""
    parts = urlsplit(url)
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all") or ""
    if not proxy or not parts.hostname or _is_direct(parts.hostname, parts.port, proxies.get("no", "")):
        return ""
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    if urlsplit(proxy).scheme not in ("http", "https"):
        raise ProxyError(url, proxy, "is not supported: it must be an HTTP proxy (http://host:port)")
    return proxy


def _is_direct(host: str, port: int | None, no_proxy: str) -> bool:
    address = parse_ip(host)
    networks = (parse_network(entry.strip().strip("[]")) for entry in no_proxy.split(","))
    if address is not None and any(network and address in network for network in networks):
        return True
    return bool(proxy_bypass(host)) or (port is not None and bool(proxy_bypass(host_and_port(host, port))))


def through_proxy(url: str) -> str:
    """Return " through the proxy …" for an error of a call of *url*; "" for a direct call."""
    try:
        proxy = proxy_of(url)
    except ProxyError:
        return ""
    return f" through the proxy {shown_proxy(proxy)}" if proxy else ""


def shown_proxy(proxy: str) -> str:
    """Return the URL of a *proxy* without user and password.

    >>> shown_proxy("http://ada:s3cret@proxy:3128/"), shown_proxy("socks5://proxy")
    ('http://proxy:3128', 'socks5://proxy')
    """
    scheme, _, rest = proxy.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2].partition('/')[0]}"
