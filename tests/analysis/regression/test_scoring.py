"""From minutes to a verdict: which regressions fire, which do not, and the blamed stages."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np
import pytest

from stagelens.analysis.regression import scoring
from stagelens.analysis.regression.policy import StageEase, default_tail_policy
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


def test_a_stage_slower_by_half_fires_soon_is_named_and_resolves(service: Any, reference: Reference) -> None:
    slower = {"forward": 1.5}
    parts = ((NOW, 250, {}), (NOW + 250, 60, slower), (NOW + 310, 330, {}))
    turns = run(reference, *(service.minutes(*part) for part in parts))
    habits = learn_stage_baseline(POLICY, [service.spent(day * DAY, DAY) for day in range(3)])
    found = rank_suspects(POLICY, habits, service.spent(NOW + 250, 30, slower), turns[0][2].moved)

    assert [turn for turn, _, _ in turns] == ["fired", "resolved"]
    assert turns[0][1] <= NOW + 250 + 30
    assert turns[1][1] >= NOW + 310 + POLICY.fire.calm_for
    assert found[0].stage == "forward"
    assert 0.5 * 0.020 < found[0].seconds < 0.020
    assert found[0].share > 0.8


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
    assert beside["forward"] >= 1
    assert beside["preprocess"] < 0.7
    assert "queue" not in after


FIRE = POLICY.fire
# Positions of a window with a minimum duration, of one in which stages do not count, and of one that counts after a release only.
HOUR = 4
ALONE = next(number for number, window in enumerate(POLICY.windows) if window.alone)
BRIEF = next(number for number, window in enumerate(POLICY.windows) if window.only_released)
NEEDED = POLICY.windows[HOUR].min_duration
Stretch = tuple[int, TailScore]


def tail_score(score: float, window: int = HOUR, key: float = 0.0, **more: bool) -> TailScore:
    cells = tuple(WindowScore(0, 0.0, score if number == window else 0.0, 0.0) for number in range(len(POLICY.windows)))
    return TailScore(cells, {"forward": key} if key else {}, **more)


def go(
    progress: AlarmState, *stretches: Stretch, release_at: int | None = None, rules: AlarmRules = RULES
) -> tuple[AlarmState, list[tuple[str, int]]]:
    """Return the state and the turns of an alarm after so many minutes of each score."""
    turns: list[tuple[str, int]] = []
    for minutes, judgement in stretches:
        for at in range(progress.at + 1, progress.at + minutes + 1):
            progress, turn = advance_alarm(rules, progress, at, judgement, release=at == release_at)
            turns += [(turn, at)] if turn else []
    return progress, turns


@pytest.mark.parametrize(
    ("stretches", "turns"),
    [
        # An alarm fires once after its duration, which a minute below the score restarts.
        ([(NEEDED - 1, tail_score(1.0))], []),
        ([(NEEDED + 50, tail_score(1.0))], [("fired", NEEDED)]),
        ([(NEEDED - 1, tail_score(1.0)), (1, tail_score(0.2)), (NEEDED - 1, tail_score(1.0))], []),
        ([(300, tail_score(FIRE.slow))], [("fired", FIRE.slow_for)]),
        # An anomalous stage lowers the required score.
        ([(40, tail_score(0.5))], []),
        ([(40, tail_score(0.5, key=2.5))], [("fired", NEEDED)]),
        ([(40, tail_score(0.45, ALONE, key=2.5))], []),
        # Several stages alike, or a crowd, must last; the effects of a crowd pass after it.
        ([(FIRE.shared_for - 1, tail_score(2.0, key=2.5, shared=True))], []),
        ([(FIRE.shared_for, tail_score(2.0, key=2.5, shared=True))], [("fired", FIRE.shared_for)]),
        ([(FIRE.shared_for - 1, tail_score(2.0, key=2.5, crowded=True))], []),
        ([(FIRE.shared_for, tail_score(2.0, key=2.5, crowded=True))], [("fired", FIRE.shared_for)]),
        (
            [(5, tail_score(0.0, crowded=True)), (60, tail_score(1.0))],
            [("fired", 5 + FIRE.held_for - 1 + NEEDED)],
        ),
        # It resolves, and can fire again.
        (
            [
                (60, tail_score(1.0)),
                (100, tail_score(FIRE.calm)),
                (FIRE.calm_for, tail_score(0.0)),
                (60, tail_score(1.0)),
            ],
            [("fired", NEEDED), ("resolved", 160 + FIRE.calm_for), ("fired", 160 + FIRE.calm_for + NEEDED)],
        ),
    ],
)
def test_an_alarm_follows_the_scores(stretches: list[Stretch], turns: list[tuple[str, int]]) -> None:
    assert go(AlarmState(), *stretches)[1] == turns


@pytest.mark.parametrize(
    ("before", "score", "fires"),
    [
        (0.0, tail_score(FIRE.released), POLICY.windows[HOUR].length - 1 + POLICY.windows[HOUR].after_release),
        # The shortest windows need one stage.
        (0.0, tail_score(0.6, BRIEF, key=1.2), POLICY.windows[BRIEF].length),
        (0.0, tail_score(0.6, BRIEF, key=0.9), None),
        # A release during a regression does not lower the score.
        (0.7, tail_score(FIRE.released), None),
    ],
)
def test_a_release_lowers_the_required_score(before: float, score: TailScore, fires: int | None) -> None:
    begin, stretches = FIRE.before + 1, [(FIRE.before, tail_score(before)), (55, score)]

    assert go(AlarmState(), *stretches, release_at=begin)[1] == ([] if fires is None else [("fired", begin + fires)])
    assert go(AlarmState(), *stretches)[1] == []


def test_stage_changes_lower_the_required_score_within_bounds() -> None:
    ease = StageEase(start=1.15, by=0.35, least=0.3, one_stage=0.5)

    assert [ease.needed(key) for key in (0.0, 0.3, 1.0, 9.0)] == pytest.approx([1.0, 1.0, 0.8, 0.3])


def test_strictness_raises_the_scores_that_start_an_alarm() -> None:
    strict, began = replace(RULES, strictness=1.25), AlarmState(fired_at=0)
    scores = tail_score(1.2), tail_score(1.25), tail_score(0.36, key=2.5), tail_score(0.38, key=2.5)
    found = [[turn for turn, _ in go(AlarmState(), (40, score), rules=strict)[1][:1]] for score in scores]
    slow = [go(AlarmState(), (70, tail_score(score)), rules=strict)[1] for score in (1.05, 1.07)]

    assert found == [[], ["fired"], [], ["fired"]]
    assert slow == [[], [("fired", 60)]]
    assert [go(began, (40, tail_score(0.45)), rules=rules)[1] for rules in (strict, RULES)] == [[("resolved", 30)]] * 2


def test_a_held_alarm_must_last() -> None:
    progress, held = AlarmState(), 0
    while progress.fired_at is None:
        progress, turns = go(progress, (1, tail_score(1.0, key=2.5)))
        if turns and progress.shared < FIRE.shared_for:
            progress, held = progress.hold(FIRE.held_for), held + 1

    assert (progress.fired_at, held) == (FIRE.shared_for, 2)


def test_an_alarm_state_of_another_version_is_valid() -> None:
    before = AlarmState(at=4, runs=(9, 9), slow=(9, 9), released=(9, 9), fired_at=3)
    progress, _ = go(before, (1, tail_score(1.0)))
    raw = json.loads(replace(before, held=7).to_json())
    del raw["held"]

    assert (progress.fired_at, sum(progress.runs)) == (3, 1)
    assert AlarmState.from_json(json.dumps(raw | {"crowd": 5})) == before


def test_no_data_changes_nothing() -> None:
    nothing = TailScore((None,) * len(POLICY.windows), {})
    firing, _ = go(AlarmState(), (60, tail_score(1.0)), release_at=5)
    held, turns = go(firing, (200, nothing))

    assert turns == []
    assert held == replace(firing, at=firing.at + 200)
    assert AlarmState.from_json(firing.to_json()) == firing
