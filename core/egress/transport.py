"""Calling a host at an address that was looked up and checked here: what is checked is what is called.

A name that leads elsewhere a moment later (DNS rebinding) leads nowhere. Redirects are up to who calls: httpx follows none unless
told to, and each would be checked again. A proxy of the environment looks names up itself; what is written is checked then, and a name taken for a public one.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Sequence
from typing import Any
from urllib.request import getproxies, proxy_bypass

import httpx

from .addresses import MayCall

_PORTS = {"http": 80, "https": 443}


class CheckedTransport(httpx.AsyncBaseTransport):
    """Calls one host: connections are kept by address, and those to one host must not serve another.

    Args:
        may_call: Whom it may call.
        verify: Of an https host, as for `httpx.AsyncHTTPTransport`.
        proxy: Where a proxy does the calling.

    Requests raise NotCalledError where the host may not be called, and else what those of httpx do.
    """

    def __init__(self, may_call: MayCall, *, verify: ssl.SSLContext | bool = True, proxy: str | None = None) -> None:
        self._may_call, self._proxied = may_call, proxy is not None
        self._inner = httpx.AsyncHTTPTransport(verify=verify, proxy=proxy)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send *request* to the first of its host's addresses that can be connected to."""
        host = request.url.host
        self._may_call.check(host, [host])
        if self._proxied:
            self._may_call.check_by_proxy(host)
            return await self._inner.handle_async_request(request)
        try:
            found = await addresses_of(request.url, self._may_call)
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


async def addresses_of(url: httpx.URL, may_call: MayCall) -> list[str]:
    """Return where the host of *url* leads, all of which may be called.

    Raises:
        NotCalledError: One of them may not.
        OSError: It leads nowhere.
    """
    may_call.check(url.host, [url.host])
    try:
        answers = await asyncio.get_running_loop().getaddrinfo(url.host, port_of(url), type=socket.SOCK_STREAM)
    except UnicodeError as error:
        raise OSError(str(error)) from error
    found = _addresses(answers)
    may_call.check(url.host, found)
    return found


def proxy_of(url: httpx.URL) -> str | None:
    """Return the proxy that the environment (HTTPS_PROXY, NO_PROXY, …) names for *url*; None for none."""
    if url.scheme not in _PORTS or proxy_bypass(url.netloc.decode("ascii")):
        return None
    proxies = getproxies()
    found = proxies.get(url.scheme) or proxies.get("all")
    return found if found is None or "://" in found else f"http://{found}"


def port_of(url: httpx.URL) -> int:
    """Return the port of *url*, that of its scheme where it names none."""
    return url.port or _PORTS.get(url.scheme, 0)


def _addresses(found: Sequence[tuple[Any, ...]]) -> list[str]:
    """Return the addresses in what getaddrinfo has found, in its order; there is always one."""
    return list(dict.fromkeys(str(each[4][0]) for each in found))


def _at(address: str, request: httpx.Request) -> httpx.Request:
    """Return *request* as one to *address*; its Host header, and whom TLS believes, stay those of its host."""
    return httpx.Request(
        request.method,
        request.url.copy_with(host=address),
        headers=request.headers,
        stream=request.stream,
        extensions=request.extensions | {"sni_hostname": request.url.host},
    )
