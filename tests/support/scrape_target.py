"""Scrape target for tests: a real HTTP server with an exposition set by the test."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Served:
    port: int = 0
    bodies: dict[str, bytes] = field(default_factory=dict[str, bytes])
    headers: dict[str, str] = field(default_factory=lambda: {"Content-Type": "text/plain"})
    status: int = 200
    asked: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    stall: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/metrics"

    def counts(self, *values: float, start: float = 0.0) -> None:
        edges = (0.5, 1.0, 2.0)
        labels = 'model_name="m"'
        lines = [
            f'vllm:e2e_request_latency_seconds_bucket{{{labels},le="{edge}"}} {sum(v <= edge for v in values)}'
            for edge in edges
        ]
        lines.append(f'vllm:e2e_request_latency_seconds_bucket{{{labels},le="+Inf"}} {len(values)}')
        lines.append(f"vllm:e2e_request_latency_seconds_sum{{{labels}}} {sum(values)}")
        lines += [f"process_start_time_seconds {start}"] if start else []
        self.bodies["/metrics"] = ("\n".join(lines) + "\n").encode()


@contextmanager
def serving() -> Generator[Served]:
    served = Served()
    served.stall.set()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            served.asked.append({name.lower(): value for name, value in self.headers.items()})
            served.stall.wait()
            body = served.bodies.get(self.path)
            self.send_response(served.status if body is not None else 404)
            for name, value in served.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name it has there
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        served.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield served
        finally:
            served.stall.set()
            server.shutdown()
            thread.join()
