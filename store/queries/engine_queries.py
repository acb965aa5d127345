"""Questions to the store about what engines say of themselves."""

from __future__ import annotations

from ..selection import Selection
from . import engines
from .base import Questions
from .engines import EngineModel


class EngineQuestions(Questions):
    """What was scraped: fixed buckets, which stay intervals, and exact sums."""

    def engines(self, selection: Selection) -> list[EngineModel]:
        """Return what the engines of *selection* say, by service and model, the busiest first.

        None of it is in any other answer: a request that an agent has counted too is there, and here.
        """
        with self._snapshot() as snapshot:
            return engines.engines(snapshot, selection)
