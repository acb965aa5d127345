"""Calibration requests run before a request starts: on its thread, outside of its time, and are not counted."""

from __future__ import annotations

import contextvars
from typing import TYPE_CHECKING

import pytest

from stagelens.instrumentors import recorder, records
from stagelens.instrumentors.agent.govern import PathCost
from stagelens.instrumentors.api import request, stage

if TYPE_CHECKING:
    from conftest import Finished

LEVELS = [recorder.NEVER, recorder.TIMED_AGAIN, recorder.WITHOUT_STAGES, recorder.NOTHING]
own: contextvars.ContextVar[str] = contextvars.ContextVar("own")


@pytest.mark.parametrize("level", LEVELS)
def test_calibration_runs_once_and_changes_no_record(
    finished: Finished, monkeypatch: pytest.MonkeyPatch, level: int
) -> None:
    began: list[int] = []
    monkeypatch.setattr(recorder, "calibrate", lambda: began.append(records.clock()))
    monkeypatch.setattr(recorder, "spare", level | recorder.CALIBRATION)
    for _ in range(2):
        with request("predict"), stage("forward"):
            pass

    assert len(began) == 1
    assert recorder.spare == level
    assert all(record[1] > began[0] for record in finished)
    assert len(finished) == (0 if level == recorder.NOTHING else 2)


def test_a_failed_calibration_does_not_affect_the_request(finished: Finished, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "calibrate", lambda: 1 / 0)
    monkeypatch.setattr(recorder, "spare", recorder.CALIBRATION)
    with request("predict"):
        pass

    assert [record[3] for record in finished] == ["predict"]


def test_a_calibration_request_is_not_counted(finished: Finished, monkeypatch: pytest.MonkeyPatch) -> None:
    path = PathCost()
    monkeypatch.setattr(recorder, "calibrate", path.calibrate)
    monkeypatch.setattr(recorder, "spare", recorder.CALIBRATION)
    own.set("mine")
    with request("predict"):
        assert own.get() == "mine"

    assert [record[3] for record in finished if record[0][1] >= 0] == ["predict"]
    assert path.known
    assert path.of_ns(6) >= path.of_ns(0) >= 0
