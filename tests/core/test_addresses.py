"""Printed addresses open the server that they are of, and every name survives as a part of a path."""

from __future__ import annotations

import re
import signal
import socket
import sys
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagelens.core.addresses import name_of_segment, path_segment
from stagelens.core.errors import StagelensError
from stagelens.dashboard.config import DashboardConfig
from stagelens.dashboard.web.app import Dashboard
from stagelens.instrumentors.export.http_post import explain
from stagelens.store import Store
from tests.support.process_output import Printing

_ANY = st.text(st.characters(codec="utf-8"), min_size=1)


@pytest.mark.parametrize(("host", "opened"), [("::1", "::1"), ("0.0.0.0", "localhost")])
def test_every_address_that_is_printed_at_the_start_opens(host: str, opened: str, tmp_path: Path) -> None:
    names = ("STAGELENS_COLLECTOR", "STAGELENS_DASHBOARD", "STAGELENS_ALERTS_METRICS")
    env = {f"{name}_{key}": value for name in names for key, value in (("HOST", host), ("PORT", "0"))}
    env |= {
        "STAGELENS_COLLECTOR_GRPC_PORT": "0",
        "STAGELENS_COLLECTOR_OPEN": "1",
        "STAGELENS_DASHBOARD_TOKEN": "t" * 40,
    }
    (tmp_path / "slo.yaml").write_text("slos: [{name: a, service: a, objective: 0.9, window: 30d}]")
    started = Printing([sys.executable, "-m", "stagelens", "up"], cwd=tmp_path, env=env)
    try:
        started.wait_for("dashboard  ")
        printed = {urlsplit(each) for each in re.findall(r"https?://[^\s;]+", "\n".join(started.lines))}
        for url in printed:
            socket.create_connection((url.hostname or "", url.port or 0), timeout=30).close()
    finally:
        started.process.send_signal(signal.SIGTERM)
        started.wait()

    assert {url.hostname for url in printed} == {opened}
    assert len({url.port for url in printed}) == 4


def test_the_error_of_a_port_in_use_has_an_address_with_brackets(tmp_path: Path) -> None:
    store = Store.open(f"sqlite:///{tmp_path / 'stagelens.db'}")
    first = Dashboard(DashboardConfig(host="::1", port=0), store)
    first.start()
    try:
        port = first.address[1]
        with pytest.raises(StagelensError, match=rf"cannot listen on \[::1\]:{port} "):
            Dashboard(DashboardConfig(host="::1", port=port), store).start()
    finally:
        first.stop()
        store.close()


def test_the_address_that_an_agent_proposes_has_brackets() -> None:
    assert explain(OSError("refused"), "http://[::1]:4317/v1/metrics")[1] == "http://[::1]:4318"


@given(_ANY)
def test_any_name_survives_as_a_segment(name: str) -> None:
    segment = path_segment(name)

    assert name_of_segment(segment) == name
    assert unquote(segment).isprintable() or not name.isprintable()
    assert not set("/\\%?#;") & set(unquote(segment))
    assert unquote(segment) not in {".", ".."}
    assert name_of_segment(quote(unquote(segment), safe="")) == name
