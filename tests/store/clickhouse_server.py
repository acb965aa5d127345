"""ClickHouse for tests: chDB, its embedded engine, in this process or behind an HTTP interface in another process.

The interface supports queries, inserts and errors as sent by the driver. It has no users, no sessions and no compression.
"""

from __future__ import annotations

import atexit
import itertools
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qsl, urlsplit

import clickhouse_connect
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError

_databases = itertools.count()
_held: list[Client] = []

# To start threads and to compile expressions takes longer than most queries over the few rows of a test.
_FOR_FEW_ROWS = (
    "max_threads = 1",
    "compile_expressions = 0",
    "compile_aggregate_expressions = 0",
    "compile_sort_description = 0",
)

# Parameters for the HTTP response, which are not settings of the engine.
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
    # Responses are sent at once as one packet.
    wbufsize = -1
    disable_nagle_algorithm = True
    client: Client
    # The engine does one thing at a time, with the settings of its session.
    alone = threading.Lock()
    session: ClassVar[dict[str, str]] = {}

    def do_GET(self) -> None:
        if urlsplit(self.path).path == "/ping":
            self._respond(200, b"Ok.\n")
        else:
            self.do_POST()

    def do_POST(self) -> None:
        asked = dict(parse_qsl(urlsplit(self.path).query))
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b"".join(self._chunks())
        settings = {name: value for name, value in asked.items() if name not in _TRANSPORT}
        # The statement is in the URL, or at the start of the body before the data of an insert.
        query = asked["query"].encode() + b"\n" + body if "query" in asked else body
        try:
            with self.alone:
                self._use(settings)
                result = self._do(query)
            self._respond(200, result)
        except ClickHouseError as error:
            code = str(getattr(error, "code", 1))
            self._respond(404, str(error).encode(), {"X-ClickHouse-Exception-Code": code})

    def _use(self, settings: dict[str, str]) -> None:
        for name in self.session.keys() - settings.keys():
            self.client.command(f"SET {name} = DEFAULT")
            del self.session[name]
        for name, value in settings.items():
            if self.session.get(name) != value:
                self.client.command(f"SET {name} = '{value}'")
                self.session[name] = value

    def _do(self, query: bytes) -> bytes:
        first, _, data = query.partition(b"\n")
        if not first.startswith(b"INSERT INTO"):
            return self.client.raw_query(query.decode())
        statement, _, kind = first.decode().rpartition(" FORMAT ")
        self.client.raw_insert(statement.removeprefix("INSERT INTO "), insert_block=data, fmt=kind)
        return b""

    def _chunks(self) -> Generator[bytes]:
        while size := int(self.rfile.readline(), 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()

    def _respond(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
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
        """Log nothing."""


def embedded_url(directory: Path) -> str:
    _hold_connection(str(directory))
    return f"clickhousedb:///{new_database()}?interface=chdb&path={directory}&ttl=off"


def new_database() -> str:
    return f"stagelens_test_{next(_databases)}"


def _hold_connection(directory: str) -> None:
    """Hold a connection to the engine, because restarting it with all tables takes longer than a test."""
    if not _held:
        _held.append(clickhouse_connect.get_client(interface="chdb", path=directory))


def release_engine() -> None:
    while _held:
        _held.pop().close()


atexit.register(release_engine)


@contextmanager
def clickhouse_server() -> Generator[str]:
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, __file__, directory]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                yield f"clickhousedb://127.0.0.1:{process.stdout.readline().strip()}/{{}}?compress=false"
            finally:
                process.terminate()


def main() -> None:
    _Handler.client = clickhouse_connect.get_client(interface="chdb", path=str(Path(sys.argv[1]) / "data"))
    for setting in _FOR_FEW_ROWS:
        _Handler.client.command(f"SET {setting}")
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
