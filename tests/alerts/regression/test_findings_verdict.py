"""Verdict about a latency regression."""

from dataclasses import replace

import numpy as np
import pytest

from stagelens.alerts.regression.findings import make_verdict
from stagelens.alerts.regression.traffic import TrafficShift
from stagelens.analysis.regression.scoring import WindowScore
from stagelens.analysis.regression.stage_attribution import Suspect
from stagelens.analysis.regression.statistic import END_TO_END, MEAN, Row
from stagelens.core.histogram import Histogram

CELL = WindowScore(0, 8.5, 1.4, 0.6)
ROW = Row(END_TO_END, 0.95, -100, 1.0, 0.05)
FORWARD, QUEUE, OTHER = (
    Suspect("forward", 0.01, 0.8, 9.0),
    Suspect("queue", 0.003, 0.2, 3.0),
    Suspect("h2d", -0.001, -0.1, 0),
)


def drawn(factor: float) -> Histogram:
    made = Histogram()
    for value in np.random.default_rng(4).lognormal(-3, 0.4, 5000) * factor:
        made.record(float(value))
    return made


def test_a_verdict_has_before_and_after_with_their_intervals_and_the_stage_with_its_runner_up() -> None:
    """A verdict has values before and after, error bounds, the most suspect stage and the second one."""
    verdict = make_verdict(ROW, CELL, drawn(1.0), drawn(1.5), (FORWARD, OTHER, QUEUE))

    assert verdict.before
    assert verdict.after
    assert verdict.change
    assert verdict.change.low < 1.5 < verdict.change.high
    assert verdict.change.value == pytest.approx(1.5, rel=0.03)
    assert (verdict.before_n, verdict.after_n, verdict.z, verdict.at) == (5000, 5000, 8.5, 0.95)
    assert (verdict.stage, verdict.runner_up) == (FORWARD, QUEUE)
    assert not verdict.traffic_changed


def test_a_changed_mix_says_so_with_what_is_left_on_the_common_mix() -> None:
    """If the mix changed, the verdict has the change on the common mix."""
    shift = TrafficShift("route", "/slow", 0.1, 0.3)
    verdict = make_verdict(ROW, CELL, drawn(1), drawn(1.5), (), shifts=(shift,), on_common_mix=(0.1, 0.102))

    assert verdict.traffic_changed
    assert verdict.on_common_mix == pytest.approx(1.02)
    assert verdict.stage is None


@pytest.mark.parametrize("at", [0.95, MEAN])
def test_no_requests_before_is_no_comparison(at: float | str) -> None:
    """Without requests before, there is no comparison at a percentile or in the mean."""
    verdict = make_verdict(replace(ROW, at=at), CELL, Histogram(), drawn(1.0), ())

    assert (verdict.before, verdict.change) == (None, None)
