"""Fixtures: a store with traffic, an SLO file, and a finding with its message."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from stagelens.alerts.delivery.message import Burn, Exemplar, Finding, Message, Trend
from stagelens.alerts.evaluation.evaluator import Evaluator
from stagelens.alerts.objectives.slo_file import Definitions, SloFileError, read_slo_file
from stagelens.analysis.comparison import StageGrowth
from stagelens.store import Store
from tests.alerts.traffic import NOW, Clock, Traffic
from tests.support.postgresql_server import Server

Problems = Callable[[str], list[str]]
ReadSlos = Callable[[str], Definitions]


@pytest.fixture
def clock() -> Clock:
    return Clock(NOW)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.stacks)])
def store(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Iterator[Store]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path / 'stagelens.db'}"
    else:
        server: Server = request.getfixturevalue("postgresql_server")
        url = server.new_store()
    opened = Store.open(url, clock=clock)
    yield opened
    opened.close()


@pytest.fixture
def traffic(store: Store, clock: Clock) -> Traffic:
    return Traffic(store, clock)


@pytest.fixture
def evaluator(store: Store) -> Evaluator:
    return Evaluator(store, "me", lease_seconds=30)


@pytest.fixture
def slo_yaml(tmp_path: Path) -> Path:
    return tmp_path / "slo.yaml"


@pytest.fixture
def read_slos(slo_yaml: Path) -> ReadSlos:
    """Return the definitions of an SLO file with the given text."""

    def read(text: str) -> Definitions:
        slo_yaml.write_text(text, encoding="utf-8")
        return read_slo_file(slo_yaml, {})

    return read


@pytest.fixture
def problems(read_slos: ReadSlos, slo_yaml: Path) -> Problems:
    def complaints(text: str) -> list[str]:
        with pytest.raises(SloFileError) as caught:
            read_slos(text)
        return str(caught.value).replace(f"{slo_yaml.parent}{os.sep}", "").splitlines()

    return complaints


@pytest.fixture
def finding() -> Finding:
    since = NOW - timedelta(minutes=12)
    return Finding(
        name="magika-latency",
        service="magika-demo",
        promise="99 % of requests to magika-demo succeed within 250 ms, over 30 days",
        kind="latency",
        severity="page",
        since=since.timestamp(),
        burn=Burn(
            rate=31.2,
            threshold=14.4,
            long_seconds=3600.0,
            short_seconds=300.0,
            bad=1872.0,
            total=6000.0,
            budget_left=0.94,
            bad_left=48_900.0,
            window_seconds=30 * 86_400.0,
            exhausted_in_seconds=21.7 * 3600,
        ),
        growth=(
            StageGrowth("preprocess", 0.1804, 0.92),
            StageGrowth("queue", 0.0112, 0.057),
            StageGrowth("serialize", 0.0046, 0.023),
        ),
        version="2",
        exemplars=(
            Exemplar("a1", 0.612, "preprocess", 0.402, "http://127.0.0.1:8600/traces/a1"),
            Exemplar("b2", 0.540, "queue", 0.310, "http://127.0.0.1:8600/traces/b2"),
        ),
        course=Trend((0.2, 0.4, None, 0.1, 3.0, 22.0, 31.2, 30.0, 29.5), 180.0, since.timestamp() - 900.0),
        description="People wait for this one.",
        runbook="https://runbooks.example/magika?a=1&b=2",
        link="http://127.0.0.1:8600/s/magika-demo?from=1795143120000&to=1795143840000&p=99",
    )


@pytest.fixture
def message(finding: Finding) -> Message:
    opened = NOW.timestamp()
    return Message("sl-0123456789abcdef0123", 1, "opened", opened, opened, finding)
