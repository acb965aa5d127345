"""HTTP transport that connects only to addresses which were resolved and checked against the egress allow-list.

The checked address is the one that is called, so DNS rebinding has no effect. httpx follows redirects only on request, and each
one is checked. A proxy of the environment resolves names itself; then the written host is checked, and a name counts as public.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Sequence
from typing import Any
from urllib.request import getproxies, proxy_bypass

import httpx

from .addresses import EgressPolicy

_PORTS = {"http": 80, "https": 443}


class CheckedTransport(httpx.AsyncBaseTransport):
    """Transport for one host; connections are pooled by address, so a second host must have its own transport.

    Args:
        egress_policy: The egress allow-list.
        verify: TLS verification, as for `httpx.AsyncHTTPTransport`.
        proxy: URL of the proxy; None for direct calls.

    Requests raise EgressDeniedError if the host may not be called, otherwise the errors of httpx.
    """

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
            found = await addresses_of(request.url, self._egress_policy)
        except OSError as error:
            raise httpx.ConnectError(str(error), request=request) from error
        for address in found[:-1]:
            try:
                return await self._inner.handle_async_request(_at(address, request))
            except (httpx.ConnectError, httpx.ConnectTimeout):
                continue
        return await self._inner.handle_async_request(_at(found[-1], request))

    async def aclose(self) -> None:
        """Close its connections."""
        await self._inner.aclose()


async def addresses_of(url: httpx.URL, egress_policy: EgressPolicy) -> list[str]:
    """Return the addresses of the host of *url*, all of which may be called.

    Raises:
        EgressDeniedError: One of them may not be called.
        OSError: The host cannot be resolved.
    """
    egress_policy.check(url.host, [url.host])
    try:
        answers = await asyncio.get_running_loop().getaddrinfo(url.host, port_of(url), type=socket.SOCK_STREAM)
    except UnicodeError as error:
        raise OSError(str(error)) from error
    found = _addresses(answers)
    egress_policy.check(url.host, found)
    return found


def proxy_of(url: httpx.URL) -> str | None:
    """Return the proxy that the environment (HTTPS_PROXY, NO_PROXY, …) names for *url*; None for none."""
    if url.scheme not in _PORTS or proxy_bypass(url.netloc.decode("ascii")):
        return None
    proxies = getproxies()
    found = proxies.get(url.scheme) or proxies.get("all")
    return found if found is None or "://" in found else f"http://{found}"


def port_of(url: httpx.URL) -> int:
    """Return the port of *url*, by default that of its scheme."""
    return url.port or _PORTS.get(url.scheme, 0)


def _addresses(found: Sequence[tuple[Any, ...]]) -> list[str]:
    """Return the distinct addresses of a result of getaddrinfo, in its order; there is at least one."""
    return list(dict.fromkeys(str(each[4][0]) for each in found))


def _at(address: str, request: httpx.Request) -> httpx.Request:
    """Return *request* sent to *address*, with the Host header and TLS server name of its host."""
    return httpx.Request(
        request.method,
        request.url.copy_with(host=address),
        headers=request.headers,
        stream=request.stream,
        extensions=request.extensions | {"sni_hostname": request.url.host},
    )
