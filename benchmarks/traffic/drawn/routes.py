"""Series of the drawn model with several routes: their latencies differ by factors, and a change slows all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from stagelens.analysis.regression.statistic import MinuteHistograms, StageSeconds

from ..counting import HIGH, LOW, STEP, Change, trimmed
from ..episodes import Traffic
from .service import Conditions
from .simulate import simulate
from .world import DrawnWorld

# Number of routes, spread of their latencies [log], and concentration of their shares of the traffic (Dirichlet).
ROUTES, SPREAD, CONCENTRATION = 4, 0.8, 2.0


class RoutedWorld(DrawnWorld):
    """Series with four routes.

    Args:
        seed: Seed of all of it.
    """

    model = "routes"

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        rng = np.random.default_rng((seed, 20))
        factors = np.exp(rng.normal(0, SPREAD, ROUTES)).tolist()
        self.shares = rng.dirichlet(np.full(ROUTES, CONCENTRATION)).tolist()
        self.routes = [
            replace(
                self.service, shapes={name: (factor * ms, *other) for name, (ms, *other) in self.service.shapes.items()}
            )
            for factor in factors
        ]

    def simulate(
        self, conditions: Conditions, at: int, seed: int, change: Change | None = None, share: float = 1.0
    ) -> Traffic:
        """Return the requests of all routes in the minutes of *conditions*."""
        found = [
            simulate(route, conditions, at, seed=ROUTES * seed + number, change=change, share=share * part)
            for number, (route, part) in enumerate(zip(self.routes, self.shares, strict=True))
        ]
        minutes, spent = _together(found)
        routes = {f"/{number}": each for number, (each, _) in enumerate(found)}
        return Traffic(minutes, spent, routes=routes)


def _together(parts: Sequence[tuple[MinuteHistograms, StageSeconds]]) -> tuple[MinuteHistograms, StageSeconds]:
    """Return the sum of the requests of *parts*, which have the same stages."""
    first = parts[0][0]
    width, stages = HIGH - LOW, len(first.stages)
    total = np.zeros((len(first), width), np.int32)
    own = np.zeros((stages, len(first), width), np.int32)
    spent = np.zeros((stages, -(-len(first) // STEP), width))
    for minutes, seconds in parts:
        place = slice(int(minutes.index[0]) - LOW, int(minutes.index[-1]) - LOW + 1)
        total[:, place] += minutes.total
        own[..., place] += minutes.own
        spent[..., place] += seconds.seconds
    return trimmed(first.start, total, own, spent, first.stages)
