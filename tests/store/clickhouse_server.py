"""ClickHouse to test with: chDB, which is its engine, in this process or behind its HTTP interface in another one.

The interface does what the driver asks for: queries, inserts and errors. It knows neither users nor sessions nor compression.
"""

from __future__ import annotations

import atexit
import itertools
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import clickhouse_connect
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError

_databases = itertools.count()
_held: list[Client] = []

# What tells the server how to answer, not the engine how to work.
_TRANSPORT = {
    "query",
    "database",
    "query_id",
    "session_id",
    "wait_end_of_query",
    "client_protocol_version",
    "enable_http_compression",
    "send_progress_in_http_headers",
    "http_headers_progress_interval_ms",
}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # An answer is one packet, sent at once.
    wbufsize = -1
    disable_nagle_algorithm = True
    client: Client

    def do_GET(self) -> None:
        if urlsplit(self.path).path == "/ping":
            self._answer(200, b"Ok.\n")
        else:
            self.do_POST()

    def do_POST(self) -> None:
        asked = dict(parse_qsl(urlsplit(self.path).query))
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b"".join(self._chunks())
        settings = {name: value for name, value in asked.items() if name not in _TRANSPORT}
        # In the URL, or first in the body, which ends with the data of an insert.
        query = asked["query"].encode() + b"\n" + body if "query" in asked else body
        try:
            self._answer(200, self._do(query, settings))
        except ClickHouseError as error:
            code = str(getattr(error, "code", 1))
            self._answer(404, str(error).encode(), {"X-ClickHouse-Exception-Code": code})

    def _do(self, query: bytes, settings: dict[str, Any]) -> bytes:
        first, _, data = query.partition(b"\n")
        if not first.startswith(b"INSERT INTO"):
            return self.client.raw_query(query.decode(), settings=settings)
        statement, _, kind = first.decode().rpartition(" FORMAT ")
        self.client.raw_insert(statement.removeprefix("INSERT INTO "), insert_block=data, fmt=kind, settings=settings)
        return b""

    def _chunks(self) -> Generator[bytes]:
        while size := int(self.rfile.readline(), 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {
            "Content-Length": str(len(body)),
            "X-ClickHouse-Timezone": "UTC",
            **(headers or {}),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is http.server's
        """Keep quiet."""


def embedded_url(directory: Path) -> str:
    """Return the URL of a new database in this process, which may open no other *directory*."""
    _keep_running(str(directory))
    return f"clickhousedb:///{new_database()}?interface=chdb&path={directory}&ttl=off"


def new_database() -> str:
    """Return a name that no other test takes."""
    return f"stagelens_test_{next(_databases)}"


def _keep_running(directory: str) -> None:
    """Hold the engine: starting it again, with all its tables, takes longer than a test."""
    if not _held:
        _held.append(clickhouse_connect.get_client(interface="chdb", path=directory))


def release_engine() -> None:
    """Let another process have the directory, once all stores in it are closed."""
    while _held:
        _held.pop().close()


atexit.register(release_engine)


@contextmanager
def clickhouse_server() -> Generator[str]:
    """Run one, in a process of its own; give its URL, with a place for the name of a database."""
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, __file__, directory]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                yield f"clickhousedb://127.0.0.1:{process.stdout.readline().strip()}/{{}}?compress=false"
            finally:
                process.terminate()


def main() -> None:
    """Serve the engine in the directory given; print the port."""
    _Handler.client = clickhouse_connect.get_client(interface="chdb", path=str(Path(sys.argv[1]) / "data"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
