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
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

MAX_RESPONSE_BYTES = 64 * 1024
# Limit of all bytes received, headers included: http.client reads any number of 100 Continue responses.
_MAX_RECEIVED_BYTES = 4 * MAX_RESPONSE_BYTES


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """An HTTP response."""

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
    """Post *body* to *url* and return the response.

    Args:
        url: An http or https URL.
        body: The request body.
        headers: The request headers.
        timeout_seconds: Deadline from connecting to the end of the response. [seconds]
        context: Returns the TLS context, for https.
        proxy: The URL of an HTTP proxy; empty for a direct connection.

    Raises:
        OSError: The connection failed, the deadline passed, or the response is too long.
        http.client.HTTPException: The response is not HTTP.
    """
    parts, via = urlsplit(url), urlsplit(proxy)
    is_tls, sent = parts.scheme == "https", dict(headers)
    called = via if proxy else parts
    connection = (
        http.client.HTTPSConnection(called.hostname or "", called.port, context=context())
        if is_tls
        else http.client.HTTPConnection(called.hostname or "", called.port)
    )
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    login = {"Proxy-Authorization": _basic(via)} if via.username else {}
    if proxy and is_tls:
        connection.set_tunnel(parts.hostname or "", parts.port, login)
    elif proxy:
        path, sent = url, sent | login
    try:
        limit_connection(connection, timeout_seconds)
        connection.request("POST", path, body=body, headers=sent)
        response = connection.getresponse()
        return HttpResponse(response.status, response.headers, response.read(MAX_RESPONSE_BYTES))
    finally:
        connection.close()


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
_MAX_SHOWN = 60
# https://datatracker.ietf.org/doc/html/rfc9113#section-3.4 and https://datatracker.ietf.org/doc/html/rfc8446#section-6
_HTTP2_SETTINGS = re.compile(r"\x00\x00.\x04", re.DOTALL)
_TLS_ALERT = re.compile(r"\x15\x03")


def _basic(via: SplitResult) -> str:
    user = f"{unquote(via.username or '')}:{unquote(via.password or '')}"
    return f"Basic {base64.b64encode(user.encode()).decode()}"


def limit_connection(
    connection: http.client.HTTPConnection, seconds: float, max_bytes: int = _MAX_RECEIVED_BYTES
) -> None:
    """Connect *connection*, and limit all its reads and writes to *seconds* from now, and to *max_bytes* received.

    Raises:
        OSError: The connection failed. Later reads raise TimeoutError after the deadline.
    """
    end = time.monotonic() + seconds

    def response(sock: socket.socket, *args: Any, **kwargs: Any) -> http.client.HTTPResponse:
        return http.client.HTTPResponse(_Until(sock, end, max_bytes), *args, **kwargs)  # type: ignore[arg-type] - has the used part of a socket

    connection.response_class = response  # type: ignore[assignment] - only ever called
    connection.timeout = seconds
    connection.connect()
    connection.sock.settimeout(_seconds_left(end))


class _Until:
    """Part of the socket interface that `HTTPResponse` uses, with a deadline."""

    def __init__(self, sock: socket.socket, end: float, max_bytes: int) -> None:
        self._sock, self._end, self._max_bytes = sock, end, max_bytes

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Reader(self._sock, self._end, self._max_bytes))


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
