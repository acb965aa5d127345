"""Start without an SLO in force: reason and fix are reported."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from pathlib import Path

import pytest

from stagelens.alerts.config import AlertsConfig
from stagelens.alerts.objectives.slo_file import (
    EXAMPLE,
    EXAMPLE_SLO,
    LiveSloFile,
    read_slo_file,
    unwatched_line,
    why_unwatched,
)
from stagelens.alerts.serve import Alerts
from stagelens.store import Store

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
SERVICE = "apiVersion: openslo/v1\nkind: Service\nmetadata: {name: checkout}\nspec: {}\n"


def live(path: Path, text: str) -> LiveSloFile:
    path.write_text(text, encoding="utf-8")
    file = LiveSloFile(path, {})
    file.refresh(NOW)
    return file


@pytest.mark.parametrize("example", [EXAMPLE, EXAMPLE_SLO])
def test_the_example_of_the_fix_is_a_valid_file(example: str, tmp_path: Path) -> None:
    file = live(tmp_path / "slo.yaml", example)

    assert [slo.service for slo in read_slo_file(tmp_path / "slo.yaml", {}).slos] == ["checkout"]
    assert why_unwatched(file) == ("", "")
    assert unwatched_line(file) == ""


def test_each_reason_for_missing_slos_has_a_fix(tmp_path: Path) -> None:
    none, no_path = why_unwatched(None), why_unwatched(LiveSloFile(None, {}))
    broken = why_unwatched(live(tmp_path / "slo.yaml", "slos: [{name: a}]"))
    empty = why_unwatched(live(tmp_path / "open.yaml", SERVICE))

    assert none == no_path
    assert EXAMPLE_SLO in none[1]
    assert broken[0].endswith("slo.yaml cannot be read")
    assert f"stagelens check {tmp_path / 'slo.yaml'}" in broken[1]
    assert empty[0].endswith("open.yaml has no SLO")
    assert EXAMPLE_SLO in empty[1]


def test_an_invalid_file_after_a_valid_one_reports_no_missing_slos(tmp_path: Path) -> None:
    file = live(tmp_path / "slo.yaml", EXAMPLE)
    (tmp_path / "slo.yaml").write_text("slos: 1", encoding="utf-8")
    file.refresh(NOW)

    assert file.errors
    assert why_unwatched(file) == ("", "")


def test_missing_slos_are_logged_in_one_line_at_startup(
    tmp_path: Path, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "slo.yaml"
    path.write_text(EXAMPLE, encoding="utf-8")
    without, watched = Alerts(AlertsConfig(), store), Alerts(AlertsConfig(slo_file=path), store)
    with caplog.at_level(logging.WARNING, logger="stagelens.alerts"):
        for alerts in (without, watched):
            alerts.start()
            alerts.stop()

    assert [record.message for record in caplog.records if "no SLO is evaluated" in record.message] == [
        f"alerts: {without.place}"
    ]
    assert without.place.startswith("no SLO is evaluated: there is no slo.yaml. ")
    assert "\n" not in without.place
    assert watched.place == str(path)
