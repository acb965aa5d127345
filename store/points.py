"""Where the rows of `points` are kept: the seam between the store and its engines.

They stand in the database with everything else (`SqlPoints`), or in ClickHouse beside it (`ClickHousePoints`), which has no
transactions: exactly-once batches, the leases and the outbox need a database that has.
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
    """What is asked of the points.

    Args:
        selection: Whose requests.
        metrics: Which histograms, as in `names.METRICS`.
        by: What the answer must still tell apart; of a total or series when it says so, whatever is cheapest else.
    """

    selection: Selection
    metrics: Sequence[str]
    by: Literal["series", "total"] | None = None

    def asks_totals(self, tier: int) -> bool:
        """Say whether totals answer it: in *tier* there are some, and nothing finer is selected."""
        return tier != schema.FINEST and self.by != "series" and not self.selection.is_fine

    def codes(self, tier: int) -> list[int]:
        """Return the numbers of its metrics in *tier*: those of totals are negative."""
        sign = -1 if self.asks_totals(tier) else 1
        return [sign * schema.METRIC_CODES[name] for name in self.metrics]


@dataclass(frozen=True, slots=True)
class SeriesSeen:
    """What one series has in a segment.

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
    """A write that was prepared.

    Args:
        part: Its number.
        rows: Of `points`, in the order of their key.
        finish: Does the rest: what must be committed together with the rows.
    """

    part: int
    rows: Sequence[PointRow]
    finish: Callable[[Connection], None]

    def also(self, more: Callable[[Connection], None]) -> PreparedWrite:
        """Return the same write with *more* to be done at its end."""

        def finish(connection: Connection) -> None:
            self.finish(connection)
            more(connection)

        return replace(self, finish=finish)


class Points(Protocol):
    """Where the rows of `points` are kept. Thread-safe.

    Every method raises StoreError if it cannot be done; *connection* is in a transaction of the database.
    """

    def apply(self, engine: Engine, prepare: Callable[[Connection], PreparedWrite | None]) -> bool:
        """Write the rows that *prepare* returns, and finish: once, and both or neither.

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
            question: Which points.
            segment: Of which tier and time.
            steps: Into which the time will be cut; None if nobody asks when.
        """
        ...

    def seen(self, connection: Connection, question: PointQuery, segment: Segment) -> list[SeriesSeen]:
        """Return what each series of *question* has in *segment*."""
        ...

    def number(self, connection: Connection, question: PointQuery, segment: Segment) -> int:
        """Return how many rows there are, before anything is added up."""
        ...

    def load(self, connection: Connection, tier: int, start: int, stop: int) -> list[PointRow]:
        """Return all rows of *tier* in `[start, stop)`, in Unix seconds."""
        ...

    def first_bucket(self, connection: Connection, tier: int, since: int) -> int | None:
        """Return the first bucket of *tier* from *since* on."""
        ...

    def cut(self, connection: Connection, tier: int, until: int) -> None:
        """Free what *tier* holds before *until*; what cannot be freed by itself yet may stay, nobody reads it any more."""
        ...

    def forget(self, connection: Connection, services: Sequence[int]) -> list[tuple[int, int, int]]:
        """Delete all rows of *services*, by their numbers; return how many there were by tier and bucket: (tier, bucket, rows)."""
        ...

    def freed_seconds(self, tier: int) -> int:
        """Return the stretch of time of *tier* that is freed as a whole."""
        ...

    def used_bytes(self, connection: Connection) -> int:
        """Return the room the points take beside what the database itself says it uses."""
        ...

    def tidy(self, connection: Connection, now: int) -> None:
        """Remove what writes that were never finished have left; *now* in Unix seconds."""
        ...

    def close(self) -> None:
        """Close all connections of its own."""
        ...


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One moment of the store.

    Args:
        connection: To the database, in a transaction that sees one moment.
        points: Where the points are.
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
