"""Servers that have no handler of SIGTERM: they report all requests, and end by the signal."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

import grpc
import pytest

if TYPE_CHECKING:
    from ...conftest import Sink
    from .conftest import Server

pytestmark = pytest.mark.stacks

Start = Callable[..., "Server"]

NEVER = "36500d"


@pytest.mark.parametrize("options", [(), ("--without-threads",)])
def test_the_server_of_flask_reports_before_its_end(start: Start, sink: Sink, options: tuple[str, ...]) -> None:
    command = ("flask", "--app", "flask_service:app", "run", "--port", "{port}", *options)
    server = start(*command, STAGELENS_EXPORT_INTERVAL=NEVER)
    server.send_many("/", 30)

    assert server.stop()[0] == -signal.SIGTERM
    assert sink.requests() == 30


def test_a_server_of_grpc_reports_before_its_end(start: Start, sink: Sink) -> None:
    server = start("grpc_service", "{port}", STAGELENS_EXPORT_INTERVAL=NEVER)
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        predict = channel.unary_unary("/shop.Shop/Predict")
        assert [predict(b"words", wait_for_ready=True, timeout=60) for _ in range(30)] == [b"words"] * 30

    assert server.stop()[0] == -signal.SIGTERM
    assert sink.requests() == 30
