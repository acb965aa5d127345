"""Hostile HTTP servers, by name: each sends one malformed, endless or misleading response."""

from __future__ import annotations

import contextlib
import gzip
import itertools
import re
import socket
import threading
from collections.abc import Generator

# Size of an "endless" response, beyond every limit of a client. [bytes]
_ENDLESS_BYTES = 64 * 1024**2
_PIECE = b"x" * 65536


def _head(*lines: bytes, status: bytes = b"200 OK") -> bytes:
    return b"\r\n".join((b"HTTP/1.1 " + status, *lines, b"", b""))


def _whole(body: bytes, *lines: bytes, status: bytes = b"200 OK") -> bytes:
    return _head(b"Content-Length: %d" % len(body), *lines, status=status) + body


def _endless(beginning: bytes, piece: bytes = _PIECE) -> list[bytes]:
    return [beginning, *[piece] * (_ENDLESS_BYTES // len(piece))]


# Response of each server in pieces; then it closes the connection.
PEERS: dict[str, list[bytes]] = {
    "hangs up": [],
    "speaks HTTP/2": [b"\x00\x00\x12\x04\x00\x00\x00\x00\x00\x00\x03\x7f\xff\xff\xff"],
    "speaks TLS": [b"\x15\x03\x01\x00\x02\x02\x46"],
    "speaks Redis": [b"-ERR unknown command 'POST', with args beginning with: '/v1/metrics' 'HTTP/1.1'\r\n"],
    "a page that is in the way": [_whole(b"<html><title>Blocked", status=b"400 Bad Request")],
    "an error that is compressed": [
        _whole(gzip.compress(bytes(range(256))), b"Content-Encoding: gzip", status=b"400 Bad Request")
    ],
    "speaks something else": [b"SSH-2.0-OpenSSH_9.2\r\n\x00\xff\xfe"],
    "a status beyond all": [_whole(b"", status=b"99999 \x1b[2J\x00")],
    "a status that is no number": [_whole(b"", status=b"OK fine")],
    "101": [_head(b"Upgrade: websocket", b"Connection: Upgrade", status=b"101 Switching Protocols")],
    "100 without end": _endless(_head(status=b"100 Continue"), _head(status=b"100 Continue") * 1000),
    "a head without end": _endless(b"HTTP/1.1 200 OK\r\nX-A: "),
    "headers without end": _endless(b"HTTP/1.1 200 OK\r\n", b"X-A: b\r\n" * 8000),
    "a body without end": _endless(_head(b"Connection: close")),
    "a length beyond all": [_head(b"Content-Length: 99999999999999999999"), b"x"],
    "a length that is negative": [_head(b"Content-Length: -1"), b"x"],
    "two lengths": [_head(b"Content-Length: 1", b"Content-Length: 2"), b"xy"],
    "a chunk beyond all": [_head(b"Transfer-Encoding: chunked"), b"ffffffffffffffff\r\nx"],
    "a chunk that is none": [_head(b"Transfer-Encoding: chunked"), b"-1\r\nx\r\n"],
    "a bomb": [_whole(gzip.compress(bytes(_ENDLESS_BYTES)), b"Content-Encoding: gzip")],
    "an encoding that is none": [_whole(b"\x1f\x8bxx", b"Content-Encoding: gzip")],
    "JSON that is nested without end": [_whole(b"[" * 200_000, b"Content-Type: application/json")],
    "text that is none": [_whole(b"\xff\xfe\x00\xed\xa0\x80", b"Content-Type: text/plain; charset=\xff\xfe")],
    "a redirect to metadata": [_whole(b"", b"Location: http://169.254.169.254/latest", status=b"302 Found")],
    "a redirect to nowhere": [_whole(b"", b"Location: http://[", status=b"308 Permanent Redirect")],
    "a wait that is no number": [_whole(b"", b"Retry-After: 1e999", status=b"503 Service Unavailable")],
    "a wait that is negative": [_whole(b"", b"Retry-After: -99999999999", status=b"429 Too Many Requests")],
    "a wait in the year 1": [_whole(b"", b"Retry-After: Mon, 01 Jan 0001 00:00:00 -2359", status=b"503 Unavailable")],
    "a wait without end": [_whole(b"", b"Retry-After: " + b"9" * 4000, status=b"503 Service Unavailable")],
    "lines of a log": [_whole(b"\r\n2026-01-01 00:00:00,000 ERROR root: owned\x1b[2J", status=b"400 Bad Request")],
}


@contextlib.contextmanager
def listening(name: str) -> Generator[str]:
    server = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=_serve, args=(server, PEERS[name]), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.getsockname()[1]}"
    # Closing alone does not wake a thread in accept().
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join()


def _serve(server: socket.socket, pieces: list[bytes]) -> None:
    with contextlib.suppress(OSError):
        while True:
            calling, _ = server.accept()
            threading.Thread(target=_respond, args=(calling, pieces), daemon=True).start()


def _respond(calling: socket.socket, pieces: list[bytes]) -> None:
    with contextlib.suppress(OSError), calling:
        # Closing a socket with unread data resets the connection, and the client loses the response.
        with calling.makefile("rb") as asking:
            head = b"".join(itertools.takewhile(lambda line: line != b"\r\n", asking))
            length = re.search(rb"content-length: *([0-9]+)", head, re.IGNORECASE)
            asking.read(int(length[1]) if length else 0)
        for piece in pieces:
            calling.sendall(piece)
