"""What the rounds say: of each measure the median of its ratios within a round, and what the true one lies between.

Times drift with the machine's other load, ratios within a round hardly. The interval is that of order statistics, so
nothing is assumed of how they are distributed: half of all rounds lie on either side of the true median.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from ...core.confidence import ranks

# What a turn was measured to be, by the measure's name.
Turn: TypeAlias = Mapping[str, float]


class Change(NamedTuple):
    """What a measure was without and with, and by how much it differs.

    Args:
        without: The median of the turns without. [the measure's own unit]
        with_: The same of those with.
        ratio: The median of the ratios within a round.
        low: What the true one is at least, at 95 %; None where there are too few rounds to tell.
        high: What it is at most.
    """

    without: float
    with_: float
    ratio: float
    low: float | None
    high: float | None

    @property
    def is_noise(self) -> bool:
        """Whether it cannot be told from no change at all."""
        return self.low is None or self.high is None or self.low <= 1 <= self.high


def change(pairs: Sequence[tuple[float, float]]) -> Change:
    """Return how the second of each of *pairs* differs from the first.

    >>> change([(1.0, 1.1)] * 6).high
    1.1
    """
    ratios = sorted(with_ / without for without, with_ in pairs)
    first, last = ranks(len(ratios), 0.5)
    known = first >= 1 and last <= len(ratios)
    return Change(
        statistics.median(without for without, _ in pairs),
        statistics.median(with_ for _, with_ in pairs),
        statistics.median(ratios),
        ratios[first - 1] if known else None,
        ratios[last - 1] if known else None,
    )


def changes(rounds: Sequence[tuple[Turn, Turn]]) -> dict[str, Change]:
    """Return the change of each measure that every turn has, and that is above zero throughout."""
    names = [name for name in rounds[0][0] if all(turn.get(name, 0) > 0 for both in rounds for turn in both)]
    return {name: change([(without[name], with_[name]) for without, with_ in rounds]) for name in names}
