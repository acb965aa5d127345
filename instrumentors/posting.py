"""One POST to the collector, and one time for all that is said on a connection.

The timeout of a socket is one for each read: an answer that comes byte by byte would hold who waits for it as long as it likes.
"""

from __future__ import annotations

import http.client
import io
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.message import Message
from typing import Any
from urllib.parse import urlsplit

MAX_ANSWER_BYTES = 64 * 1024
# Of all that is said on a connection, heads included: http.client reads any number of answers that only say 100 Continue.
_MAX_SAID_BYTES = 4 * MAX_ANSWER_BYTES


@dataclass(frozen=True, slots=True)
class Answer:
    """What the collector said.

    Args:
        status: The HTTP status.
        headers: Of the answer.
        body: The beginning of the body.
    """

    status: int
    headers: Message
    body: bytes


def post(
    url: str, body: bytes, headers: Mapping[str, str], timeout_seconds: float, context: Callable[[], ssl.SSLContext]
) -> Answer:
    """Post *body* to *url* and return the answer.

    Args:
        url: http or https.
        body: What.
        headers: Of the request.
        timeout_seconds: How long it may take, from the first try to connect to the end of the answer. [seconds]
        context: Returns whom to trust, where the URL is one of https.

    Raises:
        OSError: There is nobody, or no answer in time.
        http.client.HTTPException: What answers speaks no HTTP.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    connection = (
        http.client.HTTPSConnection(host, parts.port, context=context())
        if parts.scheme == "https"
        else http.client.HTTPConnection(host, parts.port)
    )
    try:
        limit(connection, timeout_seconds)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request("POST", path, body=body, headers=dict(headers))
        answer = connection.getresponse()
        return Answer(answer.status, answer.headers, answer.read(MAX_ANSWER_BYTES))
    finally:
        connection.close()


def limit(connection: http.client.HTTPConnection, seconds: float) -> None:
    """Connect, and have all that is sent and answered on *connection* take *seconds* from now.

    Raises:
        OSError: There is nobody; reads raise TimeoutError at the end of the time.
    """
    end = time.monotonic() + seconds

    def response(sock: socket.socket, *args: Any, **kwargs: Any) -> http.client.HTTPResponse:
        return http.client.HTTPResponse(_Until(sock, end), *args, **kwargs)  # type: ignore[arg-type] - all it asks of a socket

    connection.response_class = response  # type: ignore[assignment] - it is only called
    connection.timeout = seconds
    connection.connect()
    connection.sock.settimeout(_left(end))


class _Until:
    """As much of a socket as a response asks for."""

    def __init__(self, sock: socket.socket, end: float) -> None:
        self._sock, self._end = sock, end

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Reader(self._sock, self._end))


class _Reader(io.RawIOBase):
    """Reads a socket until *end*, by `time.monotonic`."""

    def __init__(self, sock: socket.socket, end: float) -> None:
        self._sock, self._end = sock, end
        # Keeps the socket open while the response is read, as http.client expects.
        self._raw = sock.makefile("rb", buffering=0)
        self._said = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int | None:
        self._sock.settimeout(_left(self._end))
        read = self._raw.readinto(buffer)
        self._said += read or 0
        if self._said > _MAX_SAID_BYTES:
            msg = "the answer has no end"
            raise OSError(msg)
        return read

    def close(self) -> None:
        self._raw.close()
        super().close()


def _left(end: float) -> float:
    left = end - time.monotonic()
    if left <= 0:
        msg = "timed out"
        raise TimeoutError(msg)
    return left
