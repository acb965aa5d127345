"""A server that takes every post and throws it away, in a process of its own: what all exporters are pointed at.

It ends with the process that started it. `GET /` tells how many bytes came to which path, so that a row of the tables
that has sent nothing can be told from one that has.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import urllib.request
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

received: Counter[str] = Counter()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        received[self.path] += self._read_body()
        self._respond(b"{}")

    def do_PUT(self) -> None:
        self.do_POST()

    def do_GET(self) -> None:
        self._respond(json.dumps(received).encode() if self.path == "/" else b"{}")

    def _read_body(self) -> int:
        if self.headers.get("Transfer-Encoding", "") == "chunked":
            taken = 0
            while size := int(self.rfile.readline(), 16):
                taken += len(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return taken
        return len(self.rfile.read(int(self.headers.get("Content-Length", 0))))

    def _respond(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name http.server gives it
        ...


class Sink:
    def __init__(self) -> None:
        # It ends when its standard input does.
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None  # noqa: S101 - it was asked for
        self.address = f"http://127.0.0.1:{int(self._process.stdout.readline())}"

    def received(self) -> dict[str, int]:
        with urllib.request.urlopen(f"{self.address}/", timeout=10) as response:  # noqa: S310 - on this machine
            return json.load(response)


def main() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_port, flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
