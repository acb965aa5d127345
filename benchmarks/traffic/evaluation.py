"""Evaluation of one simulated series by Stagelens and by the other detectors."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from stagelens.analysis.regression.policy import TailPolicy

from . import peers
from .episodes import DAY, DAYS, REFERENCE_DAYS, Episode, Series, World
from .ours import Alarm, Ours

OURS = "Stagelens"
# Time over which the cost of the evaluation is measured. [minutes]
MEASURED = 600
# Time after an event in which an alarm is attributed to it. [minutes]
AFTER_EVENT = 40


@dataclass(frozen=True, slots=True)
class Found:
    """Result of one episode or canary.

    Args:
        size: True growth; 0 if nothing must alert. [ratio]
        stage: Stage that changed.
        rate: Mean rate of the series. [requests/s]
        alarm: Time from the start to the alarm, by detector; None without an alarm. [minutes]
        blamed: Stages that Stagelens blamed, most suspect first.
        kind: Kind of the change or of the harmless event.
        what: Description.
    """

    size: float
    stage: str
    rate: float
    alarm: dict[str, int | None]
    blamed: tuple[str, ...] = ()
    kind: str = ""
    what: str = ""


@dataclass(slots=True)
class Outcome:
    """Results of one series.

    Args:
        seed: Seed of the series.
        rate: Its mean rate. [requests/s]
        model: Traffic model.
        false: Number of alarms of the week without changes, by detector.
        events: Kind of the event at each of Stagelens's false alarms; empty for quiet hours.
        found: Its regressions.
        harmless: Its harmless episodes.
        canaries: Its canaries.
        learning: CPU time to learn the reference once. [seconds]
        evaluating: CPU time to count and evaluate one minute. [seconds]
        state: Size of the reference as JSON. [bytes]
    """

    seed: int
    rate: float
    model: str
    false: dict[str, int] = field(default_factory=dict[str, int])
    events: list[str] = field(default_factory=list[str])
    found: list[Found] = field(default_factory=list[Found])
    harmless: list[Found] = field(default_factory=list[Found])
    canaries: list[Found] = field(default_factory=list[Found])
    learning: float = 0.0
    evaluating: float = 0.0
    state: int = 0


def evaluate(policy: TailPolicy, series: Series, *, pools: bool = True) -> Outcome:
    """Evaluate all that happens in *series*; its routes are pooled if *pools* is true."""
    world = series.world
    ours, rate = Ours(policy, world, pools=pools), world.rate
    outcome = Outcome(world.seed, rate, world.model)
    quiet = np.concatenate([peers.p99(world.day(number)[0]) for number in range(DAYS)])
    _quiet_week(ours, world, quiet, outcome)
    outcome.found = [_evaluate_episode(ours, quiet, rate, episode) for episode in series.regressions]
    outcome.harmless = [_evaluate_episode(ours, quiet, rate, episode) for episode in series.harmless]
    for pair in series.canaries:
        alarm = ours.evaluate_canary(pair)
        found = Found(pair.size, pair.stage, rate, {OURS: alarm and alarm.after}, _stages(alarm), pair.kind)
        outcome.canaries.append(found)
    outcome.learning, outcome.evaluating, outcome.state = ours.cost(MEASURED)
    return outcome


def _quiet_week(ours: Ours, world: World, quiet: np.ndarray, outcome: Outcome) -> None:
    fired = ours.quiet_week()
    outcome.false[OURS] = len(fired)
    outcome.events = [world.event(at - AFTER_EVENT, at + 1) for at in fired]
    week = range(REFERENCE_DAYS * DAY // peers.STEP, DAYS * DAY // peers.STEP)
    for name, peer in peers.peers().items():
        outcome.false[name] = peers.alarms(peer(quiet, week))


def _evaluate_episode(ours: Ours, quiet: np.ndarray, rate: float, episode: Episode) -> Found:
    found = ours.evaluate(episode)
    alarm: dict[str, int | None] = {OURS: found.after if found else None}
    first = -(-episode.at // peers.STEP)
    series = np.concatenate((quiet[:first], peers.p99(episode.minutes)))
    for name, peer in peers.peers().items():
        steps = peer(series, range(first + 1, len(series)))
        alarm[name] = (steps[0] - first) * peers.STEP if steps else None
    other = ours.world.event(episode.at + found.after - AFTER_EVENT, episode.at + found.after) if found else ""
    what = f"{episode.what}, during {other}" if other else episode.what
    return Found(episode.size, episode.stage, rate, alarm, _stages(found), episode.kind, what)


def _stages(found: Alarm | None) -> tuple[str, ...]:
    return found.stages if found else ()
