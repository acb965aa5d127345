"""Fixtures for forwarding: collectors and destinations."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
import yaml

from stagelens.collector.config import LiveConfig
from stagelens.collector.forward import forwarder
from stagelens.collector.forward import forwarder as destination_sender
from stagelens.collector.serve import Collector, CollectorConfig
from stagelens.store import Store
from tests.collector.forward.otlp_server import Destination, listening
from tests.support.ports import free_port


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten all delays."""
    monkeypatch.setattr(destination_sender, "_IDLE_SECONDS", 0.02)
    monkeypatch.setattr(destination_sender, "_FIRST_PAUSE_SECONDS", 0.02)
    monkeypatch.setattr(destination_sender, "_LONGEST_PAUSE_SECONDS", 0.1)
    monkeypatch.setattr(destination_sender, "_ELSEWHERE_SECONDS", 0.1)
    monkeypatch.setattr(forwarder, "_CHECK_SECONDS", 0.05)


@pytest.fixture
def destination() -> Generator[Destination]:
    """Destination that accepts everything."""
    with listening() as found:
        yield found


@pytest.fixture(name="free_port")
def _free_port() -> int:
    """Return a port without a listener."""
    return free_port()


@pytest.fixture
def forwarding(tmp_path: Path, store: Store) -> Generator[Callable[..., Collector]]:
    """Function that starts a collector with the given destinations; it stops at the end of the test."""
    running: list[Collector] = []

    def start(
        *destinations: dict[str, Any], to: Store = store, env: dict[str, str] | None = None, grpc_port: int = 0
    ) -> Collector:
        path = tmp_path / f"collector{len(running)}.yaml"
        path.write_text(yaml.safe_dump({"forward": {"destinations": [*destinations]}}))
        config = CollectorConfig(port=0, grpc_port=grpc_port)
        running.append(Collector(config, to, file=LiveConfig(path, env or {})))
        running[-1].start()
        return running[-1]

    yield start
    for collector in running:
        collector.stop()


@pytest.fixture
def look_up(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Function that sets the addresses of a host name, or none."""
    led: dict[str, tuple[str, ...]] = {}
    real = asyncio.BaseEventLoop.getaddrinfo

    async def getaddrinfo(self: asyncio.BaseEventLoop, host: Any, port: Any, **options: Any) -> Any:
        if host not in led:
            return await real(self, host, port, **options)
        if not led[host]:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(2, 1, 6, "", (address, port)) for address in led[host]]

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", getaddrinfo)
    return lambda host, *addresses: led.__setitem__(host, addresses)
