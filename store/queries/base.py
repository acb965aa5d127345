"""What all questions to the store have in common: where they are asked, and that each sees one moment."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

from sqlalchemy import Engine

from ..engines import database
from ..points import Points, Snapshot
from ..retention import Retention
from ..series import SeriesCaps


class Questions:
    """Where questions are asked; each is answered in a transaction of its own.

    Args:
        engine: Where to read.
        points: Where the points are.
        retention: How long things are kept.
        caps: How many series are told apart.
        clock: The time. [Unix seconds]
    """

    def __init__(
        self, engine: Engine, points: Points, retention: Retention, caps: SeriesCaps, clock: Callable[[], float]
    ) -> None:
        self._engine = engine
        self._points = points
        self._retention = retention
        self._caps = caps
        self._clock = clock

    @property
    def retention(self) -> Retention:
        """How long things are kept."""
        return self._retention

    @property
    def caps(self) -> SeriesCaps:
        """How many values of each dimension are told apart."""
        return self._caps

    @contextmanager
    def _snapshot(self) -> Generator[Snapshot]:
        with database.reading(self._engine) as connection:
            yield Snapshot(connection, self._points)
