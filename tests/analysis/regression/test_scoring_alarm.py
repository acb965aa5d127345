"""Firing and resolving, minute by minute."""

import json
from dataclasses import replace

import pytest

from stagelens.analysis.regression.policy import default_tail_policy
from stagelens.analysis.regression.scoring import AlarmRules, AlarmState, TailScore, WindowScore, advance_alarm

POLICY = default_tail_policy()
RULES = AlarmRules.of_series(POLICY)
# Position of a window that has a min_duration.
HOUR = 4


def tail_score(score: float, window: int = HOUR, key: float = 0.0) -> TailScore:
    cells = tuple(WindowScore(0, 0.0, score if number == window else 0.0, 0.0) for number in range(len(POLICY.windows)))
    return TailScore(cells, {"forward": key} if key else {})


def go(
    progress: AlarmState, minutes: int, judgement: TailScore, release_at: int | None = None, rules: AlarmRules = RULES
) -> tuple[AlarmState, list[tuple[str, int]]]:
    turns: list[tuple[str, int]] = []
    for at in range(progress.at + 1, progress.at + minutes + 1):
        progress, turn = advance_alarm(rules, progress, at, judgement, release=at == release_at)
        turns += [(turn, at)] if turn else []
    return progress, turns


def test_an_alarm_fires_once_after_its_duration() -> None:
    min_duration = POLICY.windows[HOUR].min_duration
    _, early = go(AlarmState(), min_duration - 1, tail_score(1.0))
    _, turns = go(AlarmState(), min_duration + 50, tail_score(1.0))

    assert early == []
    assert turns == [("fired", min_duration)]


def test_a_minute_below_the_score_restarts_the_duration() -> None:
    min_duration = POLICY.windows[HOUR].min_duration
    progress, _ = go(AlarmState(), min_duration - 1, tail_score(1.0))
    progress, _ = go(progress, 1, tail_score(0.2))
    _, turns = go(progress, min_duration - 1, tail_score(1.0))

    assert turns == []


def test_strictness_raises_the_scores_that_start_an_alarm() -> None:
    strict, began = replace(RULES, strictness=1.25), AlarmState(fired_at=0)
    scores = tail_score(1.2), tail_score(1.25), tail_score(0.36, key=2.5), tail_score(0.38, key=2.5)
    found = [[turn for turn, _ in go(AlarmState(), 40, score, rules=strict)[1][:1]] for score in scores]
    slow = [go(AlarmState(), 70, tail_score(score), rules=strict)[1] for score in (1.05, 1.07)]

    assert found == [[], ["fired"], [], ["fired"]]
    assert slow == [[], [("fired", 60)]]
    assert [go(began, 40, tail_score(0.45), rules=rules)[1] for rules in (strict, RULES)] == [[("resolved", 30)]] * 2


def test_an_anomalous_stage_lowers_the_required_score() -> None:
    alone = next(number for number, window in enumerate(POLICY.windows) if window.alone)

    assert go(AlarmState(), 40, tail_score(0.5))[1] == []
    assert [turn for turn, _ in go(AlarmState(), 40, tail_score(0.5, key=2.5))[1]] == ["fired"]
    assert go(AlarmState(), 40, tail_score(0.45, window=alone, key=2.5))[1] == []


def test_several_stages_alike_or_a_crowd_must_last() -> None:
    lasting = POLICY.fire.shared_for
    scores = [replace(tail_score(2.0, key=2.5), **{name: True}) for name in ("shared", "crowded")]

    assert [go(AlarmState(), lasting - 1, score)[1] for score in scores] == [[], []]
    assert [go(AlarmState(), lasting, score)[1] for score in scores] == [[("fired", lasting)]] * 2


def test_the_effects_of_a_crowd_pass_after_it() -> None:
    after, _ = go(AlarmState(), 5, replace(tail_score(0.0), crowded=True))
    _, turns = go(after, 60, tail_score(1.0))

    assert turns == [("fired", 5 + POLICY.fire.held_for - 1 + POLICY.windows[HOUR].min_duration)]


def test_a_held_alarm_must_last() -> None:
    progress, held = AlarmState(), 0
    while progress.fired_at is None:
        progress, turns = go(progress, 1, tail_score(1.0, key=2.5))
        if turns and progress.shared < POLICY.fire.shared_for:
            progress, held = progress.hold(POLICY.fire.held_for), held + 1

    assert (progress.fired_at, held) == (POLICY.fire.shared_for, 2)


def test_the_shortest_windows_need_a_release_and_one_stage() -> None:
    short = next(number for number, window in enumerate(POLICY.windows) if window.only_released)
    quiet, _ = go(AlarmState(), POLICY.fire.before, tail_score(0.0))
    score = tail_score(0.6, window=short, key=1.2)
    _, turns = go(quiet, 30, score, release_at=quiet.at + 1)

    assert go(quiet, 30, score)[1] == []
    assert go(quiet, 30, tail_score(0.6, window=short, key=0.9), release_at=quiet.at + 1)[1] == []
    assert turns == [("fired", quiet.at + 1 + POLICY.windows[short].length)]


def test_an_alarm_state_of_another_version_is_valid() -> None:
    progress, _ = go(AlarmState(at=4, runs=(9, 9), slow=(9, 9), released=(9, 9), fired_at=3), 1, tail_score(1.0))

    assert (progress.fired_at, sum(progress.runs)) == (3, 1)


def test_a_stored_alarm_state_of_another_version_is_valid() -> None:
    state = AlarmState(at=4, runs=(9, 9), held=7, fired_at=3)
    raw = json.loads(state.to_json())
    del raw["held"]

    assert AlarmState.from_json(state.to_json()) == state
    assert AlarmState.from_json(json.dumps(raw | {"crowd": 5})) == replace(state, held=0)


def test_a_lower_score_takes_longer() -> None:
    _, turns = go(AlarmState(), 300, tail_score(POLICY.fire.slow))

    assert turns == [("fired", POLICY.fire.slow_for)]


def test_a_release_lowers_the_required_score_in_later_windows() -> None:
    quiet, _ = go(AlarmState(), POLICY.fire.before, tail_score(0.0))
    begin, length = quiet.at + 1, POLICY.windows[HOUR].length
    _, turns = go(quiet, 55, tail_score(POLICY.fire.released), release_at=begin)

    assert turns == [("fired", begin + length - 1 + POLICY.windows[HOUR].after_release)]
    assert go(quiet, 55, tail_score(POLICY.fire.released))[1] == []


def test_a_release_during_a_regression_does_not_lower_the_score() -> None:
    loud, _ = go(AlarmState(), POLICY.fire.before, tail_score(0.7))
    _, turns = go(loud, 55, tail_score(POLICY.fire.released), release_at=loud.at + 1)

    assert turns == []


def test_an_alarm_resolves_and_can_fire_again() -> None:
    progress, _ = go(AlarmState(), 60, tail_score(1.0))
    restless, none = go(progress, 100, tail_score(POLICY.fire.calm))
    calm, turns = go(restless, POLICY.fire.calm_for, tail_score(0.0))

    assert none == []
    assert turns == [("resolved", restless.at + POLICY.fire.calm_for)]
    assert [turn for turn, _ in go(calm, 60, tail_score(1.0))[1]] == ["fired"]


def test_no_data_changes_nothing() -> None:
    nothing = TailScore((None,) * len(POLICY.windows), {})
    firing, _ = go(AlarmState(), 60, tail_score(1.0))
    held, turns = go(firing, 200, nothing)

    assert turns == []
    assert held == replace(firing, at=firing.at + 200)


@pytest.mark.parametrize("minutes", [0, 10, 60])
def test_progress_survives_a_restart(minutes: int) -> None:
    progress, _ = go(AlarmState(), minutes, tail_score(1.0), release_at=5)

    assert AlarmState.from_json(progress.to_json()) == progress
