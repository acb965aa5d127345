"""Stage budgets: the threshold of an SLO split among stages, which of them took more than its part, and what is left."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from ...store import Reader
from ..objectives.slo import Slo


@dataclass(frozen=True, slots=True)
class StageUse:
    """What a stage took of its budget.

    Args:
        stage: Which.
        budget_seconds: Its part of the threshold.
        seconds: What it took in the requests at the percentile the SLO promises: those that must just fit.
        mean_seconds: What it took on average, of all requests.
    """

    stage: str
    budget_seconds: float
    seconds: float
    mean_seconds: float

    @property
    def over_seconds(self) -> float:
        """How much more than its budget it took; below zero when it kept it."""
        return self.seconds - self.budget_seconds

    @property
    def is_broken(self) -> bool:
        """Whether it took more than its budget."""
        return self.over_seconds > 0


@dataclass(frozen=True, slots=True)
class BudgetSplit:
    """How some requests spent the threshold of an SLO.

    Args:
        uses: What each stage with a budget took, the worst broken first.
        requests: How many requests there are. [count]
        seconds: The latency at the percentile the SLO promises; all stages together.
        mean_seconds: The latency on average.
    """

    uses: tuple[StageUse, ...]
    requests: int
    seconds: float
    mean_seconds: float

    @property
    def rest_seconds(self) -> float:
        """What stages without a budget took in the requests at the percentile."""
        return max(0.0, self.seconds - sum(use.seconds for use in self.uses))

    @property
    def rest_mean_seconds(self) -> float:
        """What they took on average."""
        return max(0.0, self.mean_seconds - sum(use.mean_seconds for use in self.uses))

    @property
    def broken(self) -> tuple[StageUse, ...]:
        """The stages that took more than their budgets, the worst first."""
        return tuple(use for use in self.uses if use.is_broken)


def stage_budgets(read: Reader, slo: Slo, start: datetime, end: datetime) -> BudgetSplit | None:
    """Return how the requests of `[start, end)` spent the budgets of *slo*.

    Returns:
        None when the SLO has no budgets, or there are no requests.

    Raises:
        StoreError: The store cannot be read.
    """
    if not slo.budgets:
        return None
    selection = slo.select(start, end)
    at = read.breakdown(selection, (slo.objective,))
    whole = read.breakdown_over_time(selection, None, end - start)
    if at.empty or whole.empty:
        return None
    there = at.iloc[0]

    def mean(column: str) -> float:
        # A stage that no request had has no column.
        return float((whole.get(column, 0.0) * whole["n"]).sum() / whole["n"].sum())

    uses = [
        StageUse(stage, length.total_seconds(), seconds=float(there.get(stage, 0.0)), mean_seconds=mean(stage))
        for stage, length in slo.budgets
    ]
    return BudgetSplit(
        uses=tuple(sorted(uses, key=lambda use: -use.over_seconds)),
        requests=int(at.attrs["requests"]),
        seconds=float(there["value_seconds"]),
        mean_seconds=mean("value_seconds"),
    )
