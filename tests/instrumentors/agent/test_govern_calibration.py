"""Calibration requests run before a request starts: on its thread, outside of its time, and are not counted."""

from __future__ import annotations

import contextvars
from typing import TYPE_CHECKING

import pytest

from stagelens.instrumentors import recorder_state, records
from stagelens.instrumentors.agent.calibration import PathCost
from stagelens.instrumentors.api import request, stage
from stagelens.instrumentors.recorder_state import state

if TYPE_CHECKING:
    from conftest import Finished

LEVELS = [recorder_state.WITH_STAGES, recorder_state.TIMED_AGAIN, recorder_state.WITHOUT_STAGES, recorder_state.NOTHING]
own: contextvars.ContextVar[str] = contextvars.ContextVar("own")


@pytest.mark.parametrize("level", LEVELS)
def test_calibration_runs_once_and_changes_no_record(
    finished: Finished, monkeypatch: pytest.MonkeyPatch, level: int
) -> None:
    began: list[int] = []
    monkeypatch.setattr(state, "_calibrate", lambda: began.append(records.clock()))
    monkeypatch.setattr(state, "mode", level | recorder_state.CALIBRATION)
    for _ in range(2):
        with request("predict"), stage("forward"):
            pass

    assert len(began) == 1
    assert state.mode == level
    assert all(record[1] > began[0] for record in finished)
    assert len(finished) == (0 if level == recorder_state.NOTHING else 2)


def test_a_failed_calibration_does_not_affect_the_request(finished: Finished, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "_calibrate", lambda: 1 / 0)
    monkeypatch.setattr(state, "mode", recorder_state.CALIBRATION)
    with request("predict"):
        pass

    assert [record[3] for record in finished] == ["predict"]


def test_a_calibration_request_is_not_counted(finished: Finished, monkeypatch: pytest.MonkeyPatch) -> None:
    path = PathCost()
    monkeypatch.setattr(state, "_calibrate", path.calibrate)
    monkeypatch.setattr(state, "mode", recorder_state.CALIBRATION)
    own.set("mine")
    with request("predict"):
        assert own.get() == "mine"

    assert [record[3] for record in finished if record[0][records.START] >= 0] == ["predict"]
    assert path.known
    assert path.of_ns(6) >= path.of_ns(0) >= 0
