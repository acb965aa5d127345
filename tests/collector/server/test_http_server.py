"""Listening sockets of the product."""

from __future__ import annotations

import re
import socket

import pytest

from stagelens.collector.server.http_server import open_listener
from tests.structure import ROOT, files_of


def test_a_name_with_both_addresses_listens_on_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [
        (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 0, 0, 0)),
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0)),
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    with open_listener("localhost", 0, "collector", "choose another port") as listening:
        address = listening.getsockname()

    assert address[0] == "127.0.0.1"


LISTENS = re.compile(
    r"create_server\(|start_server\(|HTTPServer\(\(|uvicorn\.(run|Server|Config)\(|add_(in)?secure_port\("
)


def test_nothing_else_listens() -> None:
    listening = {path for path in files_of("product") if LISTENS.search(path.read_text(encoding="utf-8"))}
    found = {str(path.relative_to(ROOT)) for path in listening}

    assert found == {"collector/server/http_server.py", "collector/server/grpc_server.py", "instrumentors/session.py"}
