"""How two sets of requests that answer token by token differ: by the time to the first token, and from one to the next.

Both are measured in several ways (`core.names.DEFINITIONS`), which never mix: what is compared is what both sides were measured by.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..core.histogram import Histogram
from ..store import Reader, Selection
from .difference import Difference, difference
from .thresholds import MEASURES


@dataclass(frozen=True, slots=True)
class Answers:
    """One of the two measures.

    Args:
        measure: A key of `MEASURES`.
        definition: How both sides were measured; "" where they have no way in common.
        a: The times of A. [seconds]
        b: The times of B. [seconds]
        otherwise: How many requests of A and of B were measured in other ways.
    """

    measure: str
    definition: str
    a: Histogram
    b: Histogram
    otherwise: tuple[int, int]

    def at(self, quantile: float) -> Difference | None:
        """Return how they differ at *quantile*; None where they have no way in common."""
        return difference(self.a, self.b, quantile) if self.definition else None


def answers(read: Reader, a: Selection, b: Selection) -> dict[str, Answers]:
    """Return what the sides have of each of `MEASURES`, where either has any."""
    found = ((name, read.streams(a, metric), read.streams(b, metric)) for name, metric in MEASURES.items())
    return {name: _answers(name, of_a, of_b) for name, of_a, of_b in found if of_a or of_b}


def _answers(measure: str, a: Mapping[str, Histogram], b: Mapping[str, Histogram]) -> Answers:
    common = {each: min(a[each].count, b[each].count) for each in a.keys() & b.keys()}
    chosen = max(common, key=lambda each: (common[each], each), default="")
    of_a, of_b = a.get(chosen, Histogram()), b.get(chosen, Histogram())
    otherwise = (
        sum(each.count for each in a.values()) - of_a.count,
        sum(each.count for each in b.values()) - of_b.count,
    )
    return Answers(measure, chosen, of_a, of_b, otherwise)
