"""Listening socket of HTTP servers."""

from __future__ import annotations

import socket

import pytest

from stagelens.collector.server.http_server import open_listener


def test_a_name_with_both_addresses_listens_on_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host name with IPv6 and IPv4 addresses, such as `localhost`, listens on IPv4, to which clients connect."""
    found = [
        (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 0, 0, 0)),
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0)),
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    with open_listener("localhost", 0, "collector", "choose another port") as listening:
        address = listening.getsockname()

    assert address[0] == "127.0.0.1"
