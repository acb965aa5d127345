"""From minutes to a verdict: which regressions fire, which do not, and the blamed stages."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np
import pytest

from stagelens.analysis.regression import scoring
from stagelens.analysis.regression.policy import default_tail_policy
from stagelens.analysis.regression.scoring import (
    AlarmRules,
    AlarmState,
    Reference,
    TailScore,
    TailScorer,
    WindowScore,
    advance_alarm,
    learn_reference_by_day,
)
from stagelens.analysis.regression.stage_attribution import learn_stage_baseline, rank_suspects
from stagelens.analysis.regression.statistic import END_TO_END, MinuteHistograms, count_beyond, join_tallies

POLICY = default_tail_policy()
RULES = AlarmRules.of_series(POLICY)
DAY = 1440
NOW = 3 * DAY


def run(reference: Reference, *parts: MinuteHistograms) -> list[tuple[str, int, TailScore]]:
    """Evaluate all minutes of *parts* after the first 240, and return the alarms with their times."""
    counted = reduce(join_tallies, (count_beyond(reference.rows, part) for part in parts))
    scorer, progress = TailScorer(POLICY, reference), scoring.AlarmState()
    turns: list[tuple[str, int, TailScore]] = []
    for at in range(counted.start + 241, counted.end + 1):
        last = at - counted.start
        recent = replace(
            counted,
            start=at - 240,
            requests=counted.requests[last - 240 : last],
            n=counted.n[:, last - 240 : last],
            beyond=counted.beyond[:, last - 240 : last],
        )
        judged = scorer.score(recent)
        progress, turn = scoring.advance_alarm(RULES, progress, at, judged)
        turns += [(turn, at, judged)] if turn else []
    return turns


def test_a_daily_pattern_does_not_fire(make_service: Callable[..., Any]) -> None:
    service = make_service(rate=300, day_swing=0.4, load_swing=0.5)
    days = [service.minutes(day * DAY, DAY) for day in range(4)]
    reference = learn_reference_by_day(POLICY, lambda: days[:3])

    assert reference is not None
    assert run(reference, days[3]) == []


@pytest.mark.parametrize("length", [3, 10])
def test_a_short_spike_does_not_fire(service: Any, reference: Reference, length: int) -> None:
    slow = dict.fromkeys(("forward", "preprocess", "queue"), 3.0)
    parts = (
        service.minutes(NOW, 250),
        service.minutes(NOW + 250, length, slow),
        service.minutes(NOW + 250 + length, 90),
    )

    assert run(reference, *parts) == []


def test_a_stage_slower_by_half_fires_soon_and_is_named(service: Any, reference: Reference) -> None:
    slower = {"forward": 1.5}
    turns = run(reference, service.minutes(NOW, 250), service.minutes(NOW + 250, 40, slower))
    habits = learn_stage_baseline(POLICY, [service.spent(day * DAY, DAY) for day in range(3)])
    found = rank_suspects(POLICY, habits, service.spent(NOW + 250, 30, slower), turns[0][2].moved)

    assert [turn for turn, _, _ in turns] == ["fired"]
    assert turns[0][1] <= NOW + 250 + 30
    assert found[0].stage == "forward"
    assert 0.5 * 0.020 < found[0].seconds < 0.020
    assert found[0].share > 0.8


def test_a_regression_resolves_after_clean_windows(service: Any, reference: Reference) -> None:
    parts = (
        service.minutes(NOW, 250),
        service.minutes(NOW + 250, 60, {"forward": 1.5}),
        service.minutes(NOW + 310, 330),
    )
    turns = run(reference, *parts)

    assert [turn for turn, _, _ in turns] == ["fired", "resolved"]
    assert turns[1][1] >= NOW + 310 + POLICY.fire.calm_for


def test_the_unit_of_latency_does_not_matter(
    service: Any, three_days: list[MinuteHistograms], reference: Reference
) -> None:
    window = service.minutes(NOW, 245, {"forward": 1.1})

    def shifted(day: MinuteHistograms) -> MinuteHistograms:
        return replace(day, index=day.index + 3 * 32)

    scaled = learn_reference_by_day(POLICY, lambda: [shifted(day) for day in three_days])
    assert scaled is not None
    one = TailScorer(POLICY, reference).score(count_beyond(reference.rows, window))
    other = TailScorer(POLICY, scaled).score(count_beyond(scaled.rows, shifted(window)))

    assert other.scores == pytest.approx(one.scores, rel=1e-4)
    assert other.moved == pytest.approx(one.moved, rel=1e-4)


def test_a_baseline_round_trips_through_json(service: Any, reference: Reference) -> None:
    again = Reference.from_json(reference.to_json())
    window = count_beyond(reference.rows, service.minutes(NOW, 245))

    assert again == reference
    assert TailScorer(POLICY, again).score(window) == TailScorer(POLICY, reference).score(window)


def test_a_baseline_of_another_version_is_refused(reference: Reference) -> None:
    raw = json.loads(reference.to_json())
    del raw["format"]

    with pytest.raises(ValueError, match="must be learned again"):
        Reference.from_json(json.dumps(raw))


def test_few_minutes_are_evaluated_by_the_short_windows(service: Any, reference: Reference) -> None:
    judged = TailScorer(POLICY, reference).score(count_beyond(reference.rows, service.minutes(NOW, 65)))

    assert [cell is not None for cell in judged.cells] == [window.length <= 65 for window in POLICY.windows]


def test_too_few_requests_are_not_evaluated(make_service: Callable[..., Any], reference: Reference) -> None:
    rare = make_service(rate=0.05)
    judged = TailScorer(POLICY, reference).score(count_beyond(reference.rows, rare.minutes(NOW, 245, {"forward": 5.0})))

    assert all(cell is None or reference.rows[cell.row].at not in (0.95, 0.99, 0.999) for cell in judged.cells)


def test_too_little_history_has_no_baseline(three_days: list[MinuteHistograms]) -> None:
    short = three_days[0]
    half = MinuteHistograms(0, short.index, short.total[:700], short.stages, short.own[:, :700])

    assert learn_reference_by_day(POLICY, lambda: [half]) is None
    assert learn_reference_by_day(POLICY, list) is None


def test_a_service_without_stages_is_evaluated_as_a_whole(three_days: list[MinuteHistograms]) -> None:
    bare = [replace(day, stages=(), own=np.zeros((0, *day.total.shape), int)) for day in three_days]
    reference = learn_reference_by_day(POLICY, lambda: bare)

    assert reference is not None
    assert {row.stage for row in reference.rows} == {END_TO_END}
    assert TailScorer(POLICY, reference).score(count_beyond(reference.rows, bare[0]).last(240)).moved == {}


def test_a_change_below_the_minimum_is_ignored(make_service: Callable[..., Any]) -> None:
    service = make_service(rate=60_000)
    days = [service.minutes(day * DAY, DAY) for day in range(2)]
    reference = learn_reference_by_day(POLICY, lambda: days)
    assert reference is not None
    judged = TailScorer(POLICY, reference).score(
        count_beyond(reference.rows, service.minutes(2 * DAY, 245, {"forward": 1.02}))
    )
    strongest = max((cell for cell in judged.cells if cell), key=lambda cell: cell.score)

    assert strongest.z > 5
    assert judged.score < 1


def test_a_daily_change_becomes_the_baseline(service: Any) -> None:
    slower = {"forward": 1.3}
    days: list[MinuteHistograms] = []
    for day, at in enumerate((300, 800, 1200, 100)):
        start = day * DAY
        parts = [service.minutes(start, at), service.minutes(start + at, 30, slower)]
        days += [*parts, service.minutes(start + at + 30, DAY - at - 30)]
    reference = learn_reference_by_day(POLICY, lambda: days)
    assert reference is not None
    parts = (
        service.minutes(4 * DAY, 250),
        service.minutes(4 * DAY + 250, 30, slower),
        service.minutes(4 * DAY + 280, 60),
    )

    assert run(reference, *parts) == []


def test_the_stage_key_is_the_changed_stage(service: Any, reference: Reference) -> None:
    slower = {"forward": 1.3}
    moved = TailScorer(POLICY, reference).score(count_beyond(reference.rows, service.minutes(NOW, 245, slower))).moved

    assert moved["forward"] >= 1
    assert moved["preprocess"] < 0.7
    assert "queue" not in moved


def test_waiting_is_evidence_if_no_other_stage_moved(service: Any, reference: Reference) -> None:
    slower = {"queue": 12.0}
    crowd = (
        service.minutes(NOW, 200, slower),
        service.minutes(NOW + 200, 10, share=4),
        service.minutes(NOW + 210, 35, slower),
    )
    parts = ((service.minutes(NOW, 245, slower),), (service.minutes(NOW, 245, slower | {"forward": 1.3}),), crowd)
    alone, beside, after = (
        TailScorer(POLICY, reference)
        .score(reduce(join_tallies, [count_beyond(reference.rows, part) for part in each]))
        .moved
        for each in parts
    )

    assert max(alone, key=lambda stage: alone[stage]) == "queue"
    assert alone["queue"] >= 1
    assert "queue" not in beside
    assert "queue" not in after


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
