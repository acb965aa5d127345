"""A small service for tests of the search for regressions: a few stages, and requests by the minute."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
from numpy.typing import NDArray

from stagelens.analysis.regression.policy import default_tail_policy
from stagelens.analysis.regression.scoring import Reference, learn_reference_by_day
from stagelens.analysis.regression.statistic import MinuteHistograms, StageSeconds

DAY = 1440
STAGES = {"forward": (0.020, 0.2), "preprocess": (0.008, 0.4), "queue": (0.001, 1.0)}
LOW, WIDTH = -420, 320


@dataclass
class Service:
    """Draws *rate* requests a minute from the distribution of its stages; swings are ratios over a day, of the latency and of the load."""

    rate: float = 600
    day_swing: float = 0.0
    load_swing: float = 0.3
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(7))

    def minutes(
        self, start: int, length: int, slower: dict[str, float] | None = None, share: float = 1.0
    ) -> MinuteHistograms:
        """Return *length* minutes in which the stages of *slower* take so many times as long."""
        at = np.arange(start, start + length)
        n = self.rng.poisson(share * self.rate * (1 + self.load_swing * np.sin(2 * np.pi * at / DAY)))
        slow = self.day_swing * (1 - np.cos(2 * np.pi * at / DAY)) / 2
        fast, own_fast, _ = _shape(tuple(sorted((slower or {}).items())), 1.0)
        slowest, own_slowest, _ = _shape(tuple(sorted((slower or {}).items())), 1 + self.day_swing)
        part = (slow / self.day_swing if self.day_swing else slow)[:, None]
        total = self.rng.multinomial(n, fast * (1 - part) + slowest * part)
        own = [self.rng.multinomial(n, a * (1 - part) + b * part) for a, b in zip(own_fast, own_slowest, strict=True)]
        return MinuteHistograms(start, np.arange(LOW, LOW + WIDTH), total, tuple(STAGES), np.array(own))

    def spent(self, start: int, length: int, slower: dict[str, float] | None = None, step: int = 10) -> StageSeconds:
        """Return where the time of the same requests goes."""
        pmf, _, seconds = _shape(tuple(sorted((slower or {}).items())), 1.0)
        total = self.rng.multinomial(self.rng.poisson(self.rate * step, length // step), pmf)
        return StageSeconds(start, step, np.arange(LOW, LOW + WIDTH), total, tuple(STAGES), seconds[:, None, :] * total)


_SHAPES: dict[tuple[tuple[tuple[str, float], ...], float], tuple[NDArray[np.float64], ...]] = {}


def _shape(slower: tuple[tuple[str, float], ...], factor: float) -> tuple[NDArray[np.float64], ...]:
    """Return the shares of the buckets, of the whole and of each stage, and each stage's mean seconds by bucket."""
    if (slower, factor) not in _SHAPES:
        rng = np.random.default_rng(3)
        times = dict(slower)
        taken = np.array(
            [
                median * factor * times.get(stage, 1.0) * rng.lognormal(0, spread, 60_000)
                for stage, (median, spread) in STAGES.items()
            ]
        )
        place = _place(taken.sum(axis=0))
        count = np.bincount(place, minlength=WIDTH)
        seconds = np.array([np.bincount(place, stage, WIDTH) / np.maximum(count, 1) for stage in taken])
        own = np.array([np.bincount(_place(stage), minlength=WIDTH) / stage.size for stage in taken])
        _SHAPES[slower, factor] = (count / count.sum(), own, seconds)
    return _SHAPES[slower, factor]


def _place(seconds: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.clip(np.ceil(np.log2(seconds) * 32).astype(int) - 1 - LOW, 0, WIDTH - 1)


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def make_service() -> Callable[..., Service]:
    return Service


@pytest.fixture(scope="session")
def three_days() -> list[MinuteHistograms]:
    service = Service(rng=np.random.default_rng(11))
    return [service.minutes(day * DAY, DAY) for day in range(3)]


@pytest.fixture(scope="session")
def reference(three_days: list[MinuteHistograms]) -> Reference:
    learnt = learn_reference_by_day(default_tail_policy(), lambda: three_days)
    assert learnt is not None
    return learnt
