"""Storage of the rows of `points`: the interface between the store and its engines.

The rows are in the relational database (`SqlPoints`), or in ClickHouse beside it (`ClickHousePoints`). ClickHouse has no
transactions; exactly-once batches, leases and the outbox need a database that has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from sqlalchemy import Connection, Engine, select

from . import schema
from .columns import Columns, Steps
from .rows import PointRow
from .selection import Selection
from .tiers import Segment


@dataclass(frozen=True, slots=True)
class PointQuery:
    """Query for points.

    Args:
        selection: The requests.
        metrics: The histograms, as in `names.METRICS`.
        by: What the result must keep apart: totals or series; None for whatever is cheapest.
    """

    selection: Selection
    metrics: Sequence[str]
    by: Literal["series", "total"] | None = None

    def asks_totals(self, tier: int) -> bool:
        """Return whether totals answer the query: *tier* has totals, and nothing finer is selected."""
        return tier != schema.FINEST and self.by != "series" and not self.selection.is_fine

    def codes(self, tier: int) -> list[int]:
        """Return the codes of the metrics in *tier*; those of totals are negative."""
        sign = -1 if self.asks_totals(tier) else 1
        return [sign * schema.METRIC_CODES[name] for name in self.metrics]


@dataclass(frozen=True, slots=True)
class SeriesSeen:
    """Contents of one series in a segment.

    Args:
        series_id: Number of the series or total.
        requests: Sum of the counts.
        first: Its first bucket. [Unix seconds]
        last: Its last bucket. [Unix seconds]
    """

    series_id: int
    requests: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class PreparedWrite:
    """A prepared write.

    Args:
        part: Its number.
        rows: Rows of `points`, in the order of their key.
        finish: Writes everything that must be committed together with the rows.
    """

    part: int
    rows: Sequence[PointRow]
    finish: Callable[[Connection], None]

    def also(self, more: Callable[[Connection], None]) -> PreparedWrite:
        """Return the same write with *more* to be called at its end."""

        def finish(connection: Connection) -> None:
            self.finish(connection)
            more(connection)

        return replace(self, finish=finish)


class Points(Protocol):
    """Storage of the rows of `points`. Thread-safe.

    Every method raises StoreError if it cannot be done; *connection* is in a transaction of the database.
    """

    def apply(self, engine: Engine, prepare: Callable[[Connection], PreparedWrite | None]) -> bool:
        """Write the rows that *prepare* returns, and finish: exactly once, both or neither.

        Returns:
            Whether *prepare* had anything to write.
        """
        ...

    def read(
        self, connection: Connection, question: PointQuery, segment: Segment, steps: Steps | None
    ) -> Iterator[Columns]:
        """Yield the points of *segment*, in pieces.

        Points of one step, metric, stage and scale (and series or total, if the question says so) may come added up, at the
        last of their times.

        Args:
            connection: The snapshot to read.
            question: The query.
            segment: Tier and time.
            steps: Steps into which the time will be divided; None for one.
        """
        ...

    def seen(self, connection: Connection, question: PointQuery, segment: Segment) -> list[SeriesSeen]:
        """Return the contents of each series of *question* in *segment*."""
        ...

    def number(self, connection: Connection, question: PointQuery, segment: Segment) -> int:
        """Return the number of rows, before summing."""
        ...

    def load(self, connection: Connection, tier: int, start: int, stop: int) -> list[PointRow]:
        """Return all rows of *tier* in `[start, stop)`, in Unix seconds."""
        ...

    def first_bucket(self, connection: Connection, tier: int, since: int) -> int | None:
        """Return the first bucket of *tier* from *since* on."""
        ...

    def cut(self, connection: Connection, tier: int, until: int) -> None:
        """Delete what *tier* holds before *until*; data that cannot be deleted on its own may stay, it is no longer read."""
        ...

    def forget(self, connection: Connection, services: Sequence[int]) -> list[tuple[int, int, int]]:
        """Delete all rows of *services*, given by number; return the deleted rows by tier and bucket: (tier, bucket, rows)."""
        ...

    def freed_seconds(self, tier: int) -> int:
        """Return the length of time that *tier* frees at once."""
        ...

    def used_bytes(self, connection: Connection) -> int:
        """Return the size of the points that the relational database does not count itself."""
        ...

    def tidy(self, connection: Connection, now: int) -> None:
        """Delete the leftovers of unfinished writes; *now* in Unix seconds."""
        ...

    def close(self) -> None:
        """Close all connections of the engine."""
        ...


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One moment of the store.

    Args:
        connection: Connection in a transaction with a consistent snapshot.
        points: Storage of the points.
    """

    connection: Connection
    points: Points


def owner_numbers(connection: Connection, question: PointQuery, tier: int) -> tuple[list[int], list[int] | None]:
    """Return the numbers of the services, and of the series or totals of *tier*; None for all of the services."""
    series, selection = schema.series, question.selection
    number = series.c.total_id if question.asks_totals(tier) else series.c.id
    found = connection.execute(select(series.c.service_id, number).where(*selection.conditions())).all()
    services, numbers = {row[0] for row in found}, {row[1] for row in found}
    return sorted(services), None if selection.is_of_services else sorted(numbers)
