"""An HTTP server whose responses a test decides, in a thread; what it received is recorded."""

from __future__ import annotations

import itertools
import ssl
import threading
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes
    certificate: Any = None
    """Of the client, as `SSLSocket.getpeercert` returns it."""
    head: Message = field(default_factory=Message)
    """The headers as they came, of which several may have a name."""


@dataclass
class Recorded:
    url: str
    requests: list[Request] = field(default_factory=list)


# A body in several parts is sent in chunks, unless it has a length. Raw bytes are the whole response, none of them a hang-up.
Response = tuple[int, Mapping[str, str], bytes | Iterable[bytes]] | bytes


@contextmanager
def http_server(
    respond: Callable[[Request], Response] = lambda _: (200, {}, b""),
    *,
    context: ssl.SSLContext | None = None,
    protocol: str = "HTTP/1.1",
) -> Generator[Recorded]:
    """Serve what *respond* returns for each request until the block ends; a client that leaves is not an error."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = protocol

        def respond(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            certificate = getattr(self.connection, "getpeercert", dict[str, Any])()
            request = Request(self.command, self.path, headers, body, certificate, self.headers)
            recorded.requests.append(request)
            response = respond(request)
            if isinstance(response, bytes):
                self.wfile.write(response)
                self.close_connection = not response
                return
            status, named, content = response
            (self.send_response_only if "Date" in named else self.send_response)(status)
            is_chunked = not (isinstance(content, bytes) or "Content-Length" in named)
            length = {"Transfer-Encoding": "chunked"} if is_chunked else {}
            if isinstance(content, bytes):
                length, content = {"Content-Length": str(len(content))}, [content]
            for name, value in {**length, **named}.items():
                self.send_header(name, value)
            self.end_headers()
            for part in itertools.chain(content, [b""] if is_chunked else ()):
                self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part) if is_chunked else part)

        do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = respond  # noqa: N815 - names of the library

        def log_message(self, format: str, *args: object) -> None: ...  # noqa: A002 - its name in the base class

    class Server(ThreadingHTTPServer):
        def get_request(self) -> tuple[Any, Any]:
            connection, address = super().get_request()
            return (context.wrap_socket(connection, server_side=True) if context else connection), address

        def handle_error(self, request: object, client_address: object) -> None: ...

    with Server(("127.0.0.1", 0), Handler) as server:
        host = f"https://localhost:{server.server_port}" if context else f"http://127.0.0.1:{server.server_port}"
        recorded = Recorded(host)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield recorded
        finally:
            server.shutdown()
            thread.join()
