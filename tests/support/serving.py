"""Servers in this process: collectors and dashboards."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from stagelens.collector.serve import Collector
from stagelens.core.addresses import server_url
from stagelens.dashboard.web.app import Dashboard


@contextmanager
def serving(server: Collector | Dashboard) -> Generator[str]:
    server.start()
    try:
        yield server_url(*server.address)
    finally:
        server.stop()
