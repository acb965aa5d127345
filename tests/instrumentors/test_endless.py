"""Requests that never end: bounded memory, and no effect on other requests."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.instrumentors.conftest import Service, Sink, until

pytestmark = [pytest.mark.stacks, pytest.mark.flaky(reruns=0)]

APP = """
import resource

import stagelens
from starlette.applications import Starlette
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route


async def forever():
    while True:
        # Far more stage records than the limit of a request.
        for _ in range(100):
            with stagelens.stage("decode"):
                pass
            with stagelens.stage("postprocess"):
                pass
        yield bytes(1000)


def memory(request):
    with open("/proc/self/statm") as file:
        return JSONResponse(int(file.read().split()[1]) * resource.getpagesize())


app = Starlette(routes=[
    Route("/forever", lambda request: StreamingResponse(forever())),
    Route("/memory", memory),
])
"""
STREAMS = 10
# Bytes to read from each stream before and between the two measurements; the limit of stage records is reached before. [bytes]
BEFORE, MORE = 30_000, 60_000


def read(streams: list[socket.socket], many: int) -> None:
    for stream in streams:
        left = many
        while left > 0:
            got = len(stream.recv(min(left, 65536)))
            assert got, "a stream has ended"
            left -= got


def test_endless_streams_take_bounded_memory(serve: Callable[..., Service], sink: Sink, tmp_path: Path) -> None:
    (tmp_path / "endless.py").write_text(APP)
    service = serve("endless:app", "--timeout-graceful-shutdown", "1", cwd=tmp_path)
    service.send_request("/memory")
    with ExitStack() as stack:
        streams = list[socket.socket]()
        for _ in range(STREAMS):
            streams.append(stack.enter_context(socket.create_connection(("127.0.0.1", service.port), 60)))
            streams[-1].sendall(b"GET /forever HTTP/1.1\r\nHost: x\r\n\r\n")
        read(streams, BEFORE)
        before = service.send_request("/memory")
        read(streams, MORE)
        after = service.send_request("/memory")
        until(lambda: sink.requests(http_route="/memory") == 3, "others are counted")

        assert service.process.poll() is None
        assert service.stop() == -signal.SIGTERM

    assert after - before < 6_000_000
    assert sink.requests(http_route="/memory") == 3
