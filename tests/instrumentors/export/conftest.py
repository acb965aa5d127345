"""Collector for deliveries: a real HTTP server whose responses the test sets."""

from __future__ import annotations

import random
import ssl
import threading
from collections.abc import Generator
from typing import Any

import pytest

from stagelens.instrumentors.config import ClientTlsFiles
from stagelens.instrumentors.export import exporter as module
from stagelens.instrumentors.export.exporter import Exporter
from stagelens.instrumentors.export.outbox import ExportBatch
from tests.support.certificate_authority import Authorities
from tests.support.http_server import Recorded, http_server


@pytest.fixture
def guarded(authority: Authorities) -> Generator[Recorded]:
    """A server that requires a certificate of the authority "clients"."""
    own = authority("servers").sign("collector")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own.certificate, own.key)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(authority("clients").file)
    with http_server(context=context, protocol="HTTP/1.0") as server:
        yield server


def clients_of(guarded: Recorded) -> list[str]:
    subjects = [request.certificate["subject"] for request in guarded.requests]
    return [dict(pair for (pair,) in subject)["commonName"] for subject in subjects]


def batch(url: str, number: int = 1, body: bytes = b"body", requests: int = 1) -> ExportBatch:
    return ExportBatch(f"instance:{number}", f"{url}/v1/metrics", body, requests)


class Exporters:
    """Makes exporters, which retry at once unless the test waits for a backoff, and holds what they lose."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.losses: list[tuple[str, int]] = []
        self._monkeypatch = monkeypatch

    def __call__(self, backoff_seconds: float = 0.02, quiet_seconds: float = 300.0, **changes: Any) -> Exporter:
        self._monkeypatch.setattr(module, "QUIET_SECONDS", quiet_seconds)
        self._monkeypatch.setattr(module, "BACKOFF_BASE_SECONDS", backoff_seconds)
        self._monkeypatch.setattr(module, "BACKOFF_CAP_SECONDS", max(0.05, backoff_seconds))
        settings: dict[str, Any] = {
            "headers": {},
            "trust": ClientTlsFiles(),
            "timeout_seconds": 60.0,
            "buffer_bytes": 1000,
            **changes,
        }
        return Exporter(lost=lambda *lost: self.losses.append(lost), rng=random.Random(1), **settings)

    def delivering(self, *batches: ExportBatch, **options: Any) -> Exporter:
        """Return an exporter that has just delivered *batches*."""
        agent = self(**options)
        for offered in batches:
            agent.offer(offered)
        assert agent.drain(60)
        return agent

    def sending(self, *batches: ExportBatch, **options: Any) -> Exporter:
        """Return an exporter whose thread sends *batches*."""
        return send(self(**options), *batches)


def send(agent: Exporter, *batches: ExportBatch) -> Exporter:
    for offered in batches:
        agent.offer(offered)
    agent.wake()
    return agent


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Exporters:
    return Exporters(monkeypatch)


@pytest.fixture(autouse=True)
def parked(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """Have exporters' threads stop with their test: one that goes on would post, and log, in the middle of another."""
    started: dict[int, dict[str, Any]] = {}
    start = Exporter._start  # pyright: ignore[reportPrivateUsage] - what it starts is not to be had otherwise

    def noted(self: Exporter) -> None:
        started[id(self)] = vars(self)
        start(self)

    monkeypatch.setattr(Exporter, "_start", noted)
    yield
    for exporter in started.values():
        if exporter["_thread"].is_alive():
            park(exporter)


def park(exporter: dict[str, Any]) -> None:
    stands = threading.Event()

    def stand() -> None:
        stands.set()
        threading.Event().wait()

    exporter["_send_waiting"] = stand
    # A failed attempt takes the call back.
    while not stands.wait(0.05):
        exporter["_wake"].set()
