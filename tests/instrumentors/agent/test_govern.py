"""The governor: never over the budget for long, a higher level with headroom, no oscillation; and its calibration."""

from __future__ import annotations

import contextvars
import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagelens.core.errors import ConfigError
from stagelens.instrumentors import recorder_state, records
from stagelens.instrumentors.agent.aggregate import ALL, NO_FACTS, NO_TRACES, NOTHING, REQUESTS_ONLY
from stagelens.instrumentors.agent.calibration import PathCost
from stagelens.instrumentors.agent.govern import (
    FREE_SHARE,
    MAX_RAISE_AFTER_SECONDS,
    OVER_BUDGET_SECONDS,
    RAISE_AFTER_SECONDS,
    RAISE_MARGIN,
    RELAPSE_SECONDS,
    CostSample,
    Governor,
)
from stagelens.instrumentors.api import request, stage
from stagelens.instrumentors.config import OverheadBudget
from stagelens.instrumentors.recorder_state import state
from tests.instrumentors.conftest import Finished

BUDGET = OverheadBudget(share=0.01, absolute_ns=100_000)
HOUR = 3600


def costs(*microseconds: float) -> list[float]:
    """Cost of each level; the level none is free."""
    return [1000 * microsecond for microsecond in microseconds] + [0.0]


def run(
    governor: Governor, costs_ns: Sequence[float], seconds: Sequence[float], *, duration_ns: float = 1e6
) -> list[tuple[float, int]]:
    changes: list[tuple[float, int]] = []
    for now in seconds:
        changed = (
            governor.try_again(now)
            if governor.level == NOTHING
            else governor.update(CostSample(now, costs_ns, duration_ns, 10_000))
        )
        if changed:
            changes.append((now, governor.level))
    return changes


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("1%,100us", OverheadBudget(0.01, 100_000)),
        ("0.5 %", OverheadBudget(0.005, 0)),
        ("2ms", OverheadBudget(0, 2_000_000)),
        ("30us , 2%", OverheadBudget(0.02, 30_000)),
        ("0", None),
        ("None", None),
    ],
)
def test_a_budget_is_a_share_a_time_or_both(text: str, budget: OverheadBudget | None) -> None:
    assert OverheadBudget.parse(text, "KEY") == budget


@pytest.mark.parametrize("text", ["1", "%", "-1%", "0%", "200%", "nan%", "100", "1%,", ",", "0us", "much", "1%;2us"])
def test_an_invalid_budget_is_refused_with_the_allowed_form(text: str) -> None:
    with pytest.raises(ConfigError, match=r"KEY is .*1%,100us"):
        OverheadBudget.parse(text, "KEY")


def test_an_idle_agent_is_within_its_budget() -> None:
    governor = Governor(BUDGET)
    cost_ns = 5e6

    assert not governor.update(CostSample(0, [cost_ns] * 4 + [0], 1e6, FREE_SHARE * 1e9 / cost_ns))
    for now in range(60):
        governor.update(CostSample(now, [cost_ns] * 4 + [0], 1e6, 1.1 * FREE_SHARE * 1e9 / cost_ns))

    assert governor.level == NOTHING


@pytest.mark.parametrize(
    ("cost_us", "rate", "share"), [(60, 1000, 0.04), (100, 1000, 0.003), (150, 1000, 0.003), (60, 10, 0.0094)]
)
def test_the_profiler_gets_what_the_rest_leaves(cost_us: float, rate: float, share: float) -> None:
    sample = CostSample(0, costs(cost_us, 50, 40, 10), 1e6, rate)

    assert Governor(BUDGET).profiler_share(sample) == pytest.approx(share)


@pytest.mark.parametrize(("no_traces_us", "level", "share"), [(50, NO_TRACES, 0.05), (110, NO_FACTS, 0.0)])
def test_the_profiler_is_paused_at_levels_without_samples(no_traces_us: float, level: int, share: float) -> None:
    governor = Governor(BUDGET)
    sample = costs(120, no_traces_us, 40, 10)
    run(governor, sample, range(20))

    assert governor.level == level
    assert governor.profiler_share(CostSample(20, sample, 1e6, 1000)) == pytest.approx(share)


def test_a_short_excess_does_not_change_the_level() -> None:
    governor = Governor(BUDGET)
    for now in range(0, 1000, 2):
        governor.update(CostSample(now, costs(200, 90, 90, 10), 1e6, 10_000))
        governor.update(CostSample(now + 1, costs(50, 40, 40, 10), 1e6, 10_000))

    assert governor.level == ALL


def test_the_governor_raises_the_level_after_lasting_headroom() -> None:
    governor = Governor(BUDGET)
    run(governor, costs(300, 290, 280, 10), range(20))
    still = run(governor, costs(101, 101, 101, 1), range(20, HOUR))
    tight = run(
        governor,
        costs(100 * RAISE_MARGIN + 1, 100 * RAISE_MARGIN + 1, 100 * RAISE_MARGIN + 1, 1),
        range(HOUR, 2 * HOUR),
    )
    (back,) = run(governor, costs(50, 40, 30, 1), range(2 * HOUR, 3 * HOUR))

    assert not still
    assert not tight
    assert back == (2 * HOUR + RAISE_AFTER_SECONDS, ALL)


def test_from_level_none_the_governor_tries_requests_only() -> None:
    governor = Governor(OverheadBudget(share=0, absolute_ns=1000))
    tries = [at for at, level in run(governor, costs(9, 8, 7, 6), range(24 * HOUR)) if level == REQUESTS_ONLY]
    gaps = [later - earlier for earlier, later in itertools.pairwise(tries)]

    assert gaps == sorted(gaps)
    assert gaps[-1] == pytest.approx(MAX_RAISE_AFTER_SECONDS, abs=2 * OVER_BUDGET_SECONDS)

    run(governor, costs(9, 8, 7, 0.5), range(24 * HOUR, 26 * HOUR))

    assert governor.level == REQUESTS_ONLY


# What a request costs at each level: each level less than the one above it.
LADDERS = st.lists(st.floats(0, 1e6), min_size=NOTHING, max_size=NOTHING).map(
    lambda each: [*sorted(each, reverse=True), 0.0]
)


@settings(deadline=None, max_examples=50)
@given(LADDERS, st.floats(1e3, 1e9))
def test_constant_costs_cause_one_change_to_the_first_level_within_the_budget(
    costs_ns: list[float], duration_ns: float
) -> None:
    governor = Governor(BUDGET)
    limit_ns = max(BUDGET.allows_ns(duration_ns), FREE_SHARE * 1e9 / 10_000)
    first = next(level for level, cost_ns in enumerate(costs_ns) if cost_ns <= limit_ns)
    changes = run(governor, costs_ns, range(HOUR // 2), duration_ns=duration_ns)
    settled = [(at, level) for at, level in changes if at > OVER_BUDGET_SECONDS]

    assert settled == [] or costs_ns[REQUESTS_ONLY] > BUDGET.allows_ns(duration_ns)
    assert [level for _, level in changes[:1]] == ([first] if first != ALL else [])
    assert all(at <= OVER_BUDGET_SECONDS for at, _ in changes[:1])


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(LADDERS, st.integers(1, 300)), min_size=1, max_size=12))
def test_changing_costs_exceed_the_budget_only_briefly(stretches: list[tuple[list[float], int]]) -> None:
    governor, now, over = Governor(BUDGET), 0, 0
    for costs_ns, seconds in stretches:
        for now in range(now + 1, now + 1 + seconds):  # noqa: B020 - goes on where it was
            run(governor, costs_ns, [now])
            fits = costs_ns[governor.level] <= max(BUDGET.allows_ns(1e6), FREE_SHARE * 1e9 / 10_000)
            over = 0 if fits else over + 1

            assert over <= OVER_BUDGET_SECONDS + 1


@settings(deadline=None, max_examples=25)
@given(LADDERS, LADDERS, st.integers(1, 400), st.integers(1, 400))
def test_an_oscillating_load_does_not_oscillate_the_level(
    one: list[float], other: list[float], for_one: int, for_other: int
) -> None:
    governor = Governor(BUDGET)
    turns = itertools.cycle([one] * for_one + [other] * for_other)
    changes = [run(governor, costs_ns, [now]) for now, costs_ns in zip(range(4 * HOUR), turns, strict=False)]
    rises = sum(
        1
        for (_, before), (_, after) in itertools.pairwise([(0, ALL), *itertools.chain.from_iterable(changes)])
        if after < before
    )

    assert rises <= 4 * HOUR / RELAPSE_SECONDS + 6


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
