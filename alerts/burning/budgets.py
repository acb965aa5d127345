"""Stage budgets: the threshold of an SLO split among stages, and which of them took more than its part."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from ...collector.store import Reader
from ..objectives.slo import Slo
from ..words import latency


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

    def in_words(self) -> str:
        """Say it in a few words.

        >>> StageUse("queue", 0.05, 0.18, 0.02).in_words()
        'queue took 180 ms, 130 ms over its budget of 50 ms'
        """
        by = latency(abs(self.over_seconds))
        return f"{self.stage} took {latency(self.seconds)}, {by} {'over' if self.is_broken else 'under'} its budget of {latency(self.budget_seconds)}"


def stage_budgets(read: Reader, slo: Slo, start: datetime, end: datetime) -> tuple[StageUse, ...]:
    """Return what each stage with a budget took of it in the requests of `[start, end)`, the worst broken first.

    Returns:
        Nothing when the SLO has no budgets, or there are no requests.

    Raises:
        StoreError: The store cannot be read.
    """
    if not slo.budgets:
        return ()
    selection = slo.select(start, end)
    at = read.breakdown(selection, (slo.objective,))
    whole = read.breakdown_over_time(selection, None, end - start)
    if at.empty or whole.empty:
        return ()
    uses = [
        StageUse(
            stage,
            length.total_seconds(),
            seconds=float(at.iloc[0].get(stage, 0.0)),
            mean_seconds=float((whole.get(stage, 0.0) * whole["n"]).sum() / whole["n"].sum()),
        )
        for stage, length in slo.budgets
    ]
    return tuple(sorted(uses, key=lambda use: -use.over_seconds))
