"""Two versions side by side."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stagelens.alerts.tail import canary, watch
from stagelens.alerts.tail.habits import learn_habits
from stagelens.alerts.tail.judge import Judgement
from stagelens.alerts.tail.minutes import Minutes
from stagelens.alerts.tail.policy import default_policy
from stagelens.alerts.tail.reference import Reference
from stagelens.alerts.tail.tally import Tally, join, tally

POLICY = default_policy()
RULES = watch.Rules(POLICY.canary.windows, POLICY.fire, POLICY.stage_key.ease)
DAY = 1440


def first_alarm(reference: Reference, old: Minutes, new: Minutes) -> tuple[int, Judgement] | None:
    """Return after how many minutes it fires, and what was judged then; None if it does not."""
    a, b = tally(reference.rows, old), tally(reference.rows, new)
    progress = watch.Progress()
    for at in range(1, len(a) + 1):
        sides = (
            replace(side, requests=side.requests[:at], n=side.n[:, :at], beyond=side.beyond[:, :at]).last(120)
            for side in (a, b)
        )
        judged = canary.compare(POLICY, reference.rows, *sides)
        progress, turn = watch.step(RULES, progress, at, judged)
        if turn == "fired":
            return at, judged
    return None


def test_a_slower_canary_is_seen_within_a_quarter_of_an_hour(service: Any, reference: Reference) -> None:
    """Half as slow again in one stage, on a tenth of the traffic, with the stage to blame."""
    slower = {"forward": 1.5}
    old, new = service.minutes(0, 60, share=0.9), service.minutes(0, 60, slower, share=0.1)
    found = first_alarm(reference, old, new)
    habits = learn_habits(POLICY, [service.spent(0, DAY)])

    assert found is not None
    assert found[0] <= 15
    blamed = canary.blame(POLICY, habits, service.spent(0, 20), service.spent(0, 20, slower), found[1].moved)
    assert blamed[0].stage == "forward"


def test_an_equal_canary_is_none(service: Any, reference: Reference) -> None:
    """Two equal versions differ by chance only."""
    assert first_alarm(reference, service.minutes(0, 180, share=0.7), service.minutes(0, 180, share=0.3)) is None


def test_what_slows_both_down_cancels(service: Any, reference: Reference) -> None:
    """A dependency that gets slower for all is not the canary's doing."""
    slower = {"preprocess": 2.0}
    old, new = service.minutes(0, 90, slower, share=0.7), service.minutes(0, 90, slower, share=0.3)

    assert first_alarm(reference, old, new) is None


def test_a_cold_start_of_the_canary_is_outlasted(service: Any, reference: Reference) -> None:
    """Three slow minutes at the beginning say nothing."""
    cold = service.minutes(0, 3, {"forward": 4.0}, share=0.3)
    warm = service.minutes(3, 87, share=0.3)
    a = tally(reference.rows, service.minutes(0, 90, share=0.7))
    b = canary_joined(reference, cold, warm)
    progress = watch.Progress()
    turns: list[str] = []
    for at in range(1, 91):
        sides = (replace(s, requests=s.requests[:at], n=s.n[:, :at], beyond=s.beyond[:, :at]) for s in (a, b))
        progress, turn = watch.step(RULES, progress, at, canary.compare(POLICY, reference.rows, *sides))
        turns += [turn] if turn else []

    assert turns == []


def canary_joined(reference: Reference, *parts: Minutes) -> Tally:
    """Count *parts* after each other."""
    first, second = (tally(reference.rows, part) for part in parts)
    return join(first, second)


def test_both_must_be_of_the_same_minutes(service: Any, reference: Reference) -> None:
    """Pairs of other minutes would not cancel anything."""
    old, new = tally(reference.rows, service.minutes(0, 30)), tally(reference.rows, service.minutes(5, 30))

    with pytest.raises(ValueError, match="same minutes, got 30 from 0, 30 from 5"):
        canary.compare(POLICY, reference.rows, old, new)


def test_chance_is_that_of_the_theory() -> None:
    """The smallest of seven normal blocks has a known median; the mean of all has none but zero."""
    assert canary.chance(7, 6)[0] == pytest.approx(-1.31, abs=0.03)
    assert canary.chance(9, 0) == pytest.approx((0.0, 1 / 3), abs=0.01)


def test_a_cold_start_takes_no_blame(service: Any) -> None:
    """The first requests of a canary wait for its weights; that is not why it is slower from then on."""
    habits = learn_habits(POLICY, [service.spent(0, DAY)])
    new = service.spent(0, 20, {"forward": 1.3})
    cold = replace(new, stages=(*new.stages, "load"), seconds=np.concatenate((new.seconds, new.total[None] * 0.1)))
    blamed = canary.blame(POLICY, habits, service.spent(0, 20), cold, {"forward": 1.2, "preprocess": 0.1})

    assert blamed[0].stage == "forward"
