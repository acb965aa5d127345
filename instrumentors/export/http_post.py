"""HTTP POST with one deadline for the whole exchange.

The timeout of a socket applies to each read, so a response that arrives byte by byte would block its reader indefinitely.
"""

from __future__ import annotations

import base64
import http.client
import io
import re
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.message import Message
from types import SimpleNamespace
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from ...core.proxies import ProxyError

MAX_RESPONSE_BYTES = 64 * 1024
# Limit of all bytes received, headers included: http.client reads any number of 100 Continue responses.
_MAX_RECEIVED_BYTES = 4 * MAX_RESPONSE_BYTES
_MAX_SHOWN = 60
# https://datatracker.ietf.org/doc/html/rfc9113#section-3.4 and https://datatracker.ietf.org/doc/html/rfc8446#section-6
_HTTP2_SETTINGS = re.compile(r"\x00\x00.\x04", re.DOTALL)
_TLS_ALERT = re.compile(r"\x15\x03")


@dataclass(frozen=True, slots=True)
class HttpResponse:
    status: int
    headers: Message
    body: bytes


def post(
    url: str,
    body: bytes,
    headers: Mapping[str, str],
    timeout_seconds: float,
    context: Callable[[], ssl.SSLContext],
    *,
    proxy: str = "",
) -> HttpResponse:
    """Post *body* to *url* and return the response, all within *timeout_seconds*, through the HTTP *proxy* if it is not empty.

    Raises:
        OSError: The connection failed, the deadline passed, or the response is too long; `ProxyError` is a subclass.
        http.client.HTTPException: The response is not HTTP.
    """
    connection, path, login = _prepared(url, proxy, context)
    try:
        _connect(connection, url, proxy, timeout_seconds)
        connection.request("POST", path, body=body, headers={**headers, **login})
        response = connection.getresponse()
        received = HttpResponse(response.status, response.headers, response.read(MAX_RESPONSE_BYTES))
    finally:
        connection.close()
    if proxy and received.status == http.client.PROXY_AUTHENTICATION_REQUIRED:
        raise ProxyError(url, proxy, "requires another user or password (HTTP 407)")
    return received


def _prepared(
    url: str, proxy: str, context: Callable[[], ssl.SSLContext]
) -> tuple[http.client.HTTPConnection, str, Mapping[str, str]]:
    parts, via = urlsplit(url), _parsed_proxy(url, proxy)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    called, login = via or parts, {"Proxy-Authorization": _basic(via)} if via and via.username else {}
    is_tls = parts.scheme == "https"
    port = called.port or (443 if called.scheme == "https" else 80)
    if not (is_tls or called.scheme == "https"):
        connection = http.client.HTTPConnection(called.hostname or "", port)
    else:
        connection = http.client.HTTPSConnection(called.hostname or "", port, context=context())
    if via is None:
        return connection, path, {}
    if not is_tls:
        # The proxy gets a URL without the user and password that a collector may have.
        return connection, f"{origin(url)}{path}", login
    connection.set_tunnel(parts.hostname or "", parts.port, login)
    return connection, path, {}


def _parsed_proxy(url: str, proxy: str) -> SplitResult | None:
    if not proxy:
        return None
    try:
        via = urlsplit(proxy)
        is_valid = bool(via.hostname) and via.port != 0
    except ValueError:
        via, is_valid = None, False
    if via is None or not is_valid:
        raise ProxyError(url, proxy, "is not a valid URL; write http://host:port")
    if via.scheme == url.partition(":")[0] == "https":
        raise ProxyError(url, proxy, "is called by TLS, which is not supported for https; write http://host:port")
    return via


def _connect(connection: http.client.HTTPConnection, url: str, proxy: str, timeout_seconds: float) -> None:
    try:
        limit_connection(connection, timeout_seconds)
    except ssl.SSLError:
        raise
    except (OSError, http.client.HTTPException) as error:
        if not proxy:
            raise
        raise ProxyError(url, proxy, f"does not connect ({error})") from error


def origin(url: str) -> str:
    """Return scheme, host and port of *url*, without user, password and query, which may be secrets."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def explain(error: Exception, url: str) -> tuple[str, str]:
    """Return what an *error* of `post` to *url* means, and the address to use instead, "" if unknown."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2].removesuffix(f":{parts.port}")
    otlp = f"{parts.scheme}://{host}:{HTTP_PORT}"
    line = f"{error}" if isinstance(error, http.client.BadStatusLine) else ""
    reason, address = f"{error}" or type(error).__name__, otlp if parts.port == GRPC_PORT else ""
    if isinstance(error, ssl.SSLError) and "WRONG_VERSION_NUMBER" in str(error):
        reason, address = "it does not use TLS", f"http:{url.partition(':')[2]}"
    elif _TLS_ALERT.match(line):
        reason, address = "it uses TLS", f"https:{url.partition(':')[2]}"
    elif _HTTP2_SETTINGS.match(line):
        reason, address = "it is a port for OTLP/gRPC, and the agent speaks OTLP/HTTP", otlp
    elif isinstance(error, http.client.RemoteDisconnected):
        reason = "it closed the connection without a response, like a port of another protocol"
    elif isinstance(error, http.client.BadStatusLine):
        reason, address = f"it does not speak HTTP: its response starts with {line[:_MAX_SHOWN]!a}", otlp
    elif isinstance(error, http.client.HTTPException):
        reason = f"its response is no valid HTTP: {error}"
    return reason, "" if parts.port == HTTP_PORT and address == otlp else address


# Default ports of the two protocols. https://opentelemetry.io/docs/specs/otlp/
GRPC_PORT, HTTP_PORT = 4317, 4318


def _basic(via: SplitResult) -> str:
    user = f"{unquote(via.username or '')}:{unquote(via.password or '')}"
    return f"Basic {base64.b64encode(user.encode()).decode()}"


def limit_connection(
    connection: http.client.HTTPConnection, seconds: float, max_bytes: int = _MAX_RECEIVED_BYTES
) -> None:
    """Connect *connection*, and limit all its reads and writes to *seconds* from now, and to *max_bytes* received."""
    end = time.monotonic() + seconds
    of_proxy: list[http.client.HTTPResponse] | None = []

    def response(sock: socket.socket, *args: Any, **kwargs: Any) -> http.client.HTTPResponse:
        # The used part of a socket.
        limited: Any = SimpleNamespace(makefile=lambda _: io.BufferedReader(_Reader(sock, end, max_bytes)))
        created = http.client.HTTPResponse(limited, *args, **kwargs)
        if of_proxy is not None:
            of_proxy.append(created)
        return created

    connection.response_class = response  # type: ignore[assignment] - only ever called
    connection.timeout = seconds
    try:
        connection.connect()
    finally:
        # Python 3.11 leaves the response of a proxy, which holds the socket, to the collector of garbage.
        for response_of_proxy in of_proxy:
            response_of_proxy.close()
        of_proxy = None
    connection.sock.settimeout(_seconds_left(end))


class _Reader(io.RawIOBase):
    """Reader of a socket until *end* (`time.monotonic`) and up to *max_bytes*."""

    def __init__(self, sock: socket.socket, end: float, max_bytes: int) -> None:
        self._sock, self._end, self._max_bytes = sock, end, max_bytes
        # Keeps the socket open while the response is read, as http.client expects.
        self._raw = sock.makefile("rb", buffering=0)
        self._received = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int | None:
        self._sock.settimeout(_seconds_left(self._end))
        read = self._raw.readinto(buffer)
        self._received += read or 0
        if self._received > self._max_bytes:
            msg = "the response is too long"
            raise OSError(msg)
        return read

    def close(self) -> None:
        self._raw.close()
        super().close()


def _seconds_left(end: float) -> float:
    left = end - time.monotonic()
    if left <= 0:
        msg = "timed out"
        raise TimeoutError(msg)
    return left
