"""Scrape target for tests: a real HTTP server with an exposition set by the test."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.support.http_server import Request, Response, http_server


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

    def respond(request: Request) -> Response:
        served.asked.append(dict(request.headers))
        served.stall.wait()
        body = served.bodies.get(request.path)
        return served.status if body is not None else 404, served.headers, body or b""

    with http_server(respond, protocol="HTTP/1.0") as server:
        served.port = int(server.url.rpartition(":")[2])
        try:
            yield served
        finally:
            served.stall.set()
