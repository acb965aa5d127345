"""One simulated series, judged by algorithm TR and by the others."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from stagelens.analysis.regression.policy import TailPolicy

from . import peers
from .episodes import DAYS, REFERENCE_DAYS, Episode, World
from .ours import Alarm, Ours
from .service import DAY

OURS = "algorithm TR"
# Minutes that the cost of judging is measured over.
MEASURED = 600


@dataclass(frozen=True, slots=True)
class Found:
    """What became of one episode.

    Args:
        size: The true growth; 0 if nothing must be said. [ratio]
        stage: Who was to blame.
        rate: Mean requests a second of the series.
        alarm: Who alarmed when. [minutes after the beginning]
        blamed: The stages that were blamed, the first first.
        what: In words.
    """

    size: float
    stage: str
    rate: float
    alarm: dict[str, int | None]
    blamed: tuple[str, ...] = ()
    what: str = ""


@dataclass(slots=True)
class Outcome:
    """What became of one series.

    Args:
        seed: Of the series.
        rate: Its mean requests a second.
        false: Alarms of the quiet week, by who alarmed.
        in_episodes: How many of ours were while a noisy neighbour was there.
        found: Its regressions.
        harmless: Its harmless episodes.
        canaries: Its canaries.
        learning: Processor seconds to learn the reference once.
        judging: Processor seconds to count and evaluate one minute.
        state: Bytes of the reference as JSON.
    """

    seed: int
    rate: float
    false: dict[str, int] = field(default_factory=dict[str, int])
    in_episodes: int = 0
    found: list[Found] = field(default_factory=list[Found])
    harmless: list[Found] = field(default_factory=list[Found])
    canaries: list[Found] = field(default_factory=list[Found])
    learning: float = 0.0
    judging: float = 0.0
    state: int = 0


def evaluate(policy: TailPolicy, world: World, regressions: int, canaries: int) -> Outcome:
    """Simulate and evaluate all that happens to *world*."""
    ours, rate = Ours(policy, world), world.service.rate
    outcome = Outcome(world.service.seed, rate)
    quiet = np.concatenate([peers.p99(world.day(number)[0]) for number in range(DAYS)])
    _quiet_week(ours, world, quiet, outcome)
    outcome.found = [_evaluate_episode(ours, quiet, rate, episode) for episode in world.regressions(regressions)]
    outcome.harmless = [_evaluate_episode(ours, quiet, rate, episode) for episode in world.harmless()]
    for pair in world.canaries(canaries):
        alarm = ours.evaluate_canary(pair)
        found = Found(pair.size, pair.stage, rate, {OURS: alarm and alarm.after}, alarm.stages if alarm else ())
        outcome.canaries.append(found)
    outcome.learning, outcome.judging, outcome.state = ours.cost(MEASURED)
    return outcome


def _quiet_week(ours: Ours, world: World, quiet: np.ndarray, outcome: Outcome) -> None:
    fired = ours.quiet_week()
    outcome.false[OURS] = len(fired)
    outcome.in_episodes = sum(bool(world.conditions.neighbours[at - 40 : at + 1].any()) for at in fired)
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
    return Found(episode.size, episode.stage, rate, alarm, _stages(found), episode.what)


def _stages(found: Alarm | None) -> tuple[str, ...]:
    return found.stages if found else ()
