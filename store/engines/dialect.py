"""What a database engine has to know how to do: one module for each, `sqlite` and `postgresql`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from sqlalchemy import Connection, Engine
from sqlalchemy.engine import URL

from ...core.errors import StoreError
from ..rows import PointRow


class InUseError(StoreError):
    """Somebody reads what should be freed: try again later."""


class Dialect(Protocol):
    """One kind of database."""

    @property
    def FIXES(self) -> Sequence[tuple[str, str]]:  # noqa: N802 - a constant of the module
        """What part of an error of its driver tells, in lower case, and what to do about it."""
        ...

    @property
    def FREED_SECONDS(self) -> Mapping[int, int]:  # noqa: N802 - a constant of the module
        """The stretch of time of each tier of `points` that `free` frees as a whole, in seconds."""
        ...

    def open_engine(self, url: URL, budget_bytes: int | None) -> Engine:
        """Return the engine of the database at *url*, nothing opened yet; it refuses to grow past *budget_bytes* if it can.

        Raises:
            StoreError: *url* lacks something.
        """
        ...

    def location(self, url: URL) -> str:
        """Return how messages name the database at *url*, without its password."""
        ...

    def for_reading(self, connection: Connection) -> Connection:
        """Make the transactions of *connection* see one moment."""
        ...

    def hold(self, connection: Connection, /) -> None:
        """Keep `points`, in the transaction that has just begun, from being changed in a way that its moment does not know."""
        ...

    def for_writing(self, connection: Connection) -> Connection:
        """Make the transactions of *connection* ready to write."""
        ...

    def lock(self, connection: Connection, /) -> None:
        """Wait, in the transaction that has just begun, until no other writes; the end of it gives way to the next."""
        ...

    def exclusive(self, connection: Connection) -> AbstractContextManager[None]:
        """Let nobody else in here, over several transactions of *connection*."""
        ...

    def insert_points(self, connection: Connection, rows: Sequence[PointRow]) -> None:
        """Insert *rows* into `points`."""
        ...

    def insert_rows(
        self, connection: Connection, table: str, columns: Sequence[str], rows: Sequence[tuple[Any, ...]]
    ) -> None:
        """Insert *rows* of *columns* into *table*: past SQLAlchemy, which takes longer over them than the database does."""
        ...

    def free(self, connection: Connection, tier: int, until: int) -> None:
        """Delete what *tier* holds before *until*, or as much of it as can be deleted at once.

        Raises:
            InUseError: Somebody reads it.
        """
        ...

    def compact_traces(self, connection: Connection, /) -> bool:
        """Give back the room of traces whose deletion was committed; return whether there was any."""
        ...

    def used_bytes(self, connection: Connection) -> int:
        """Return the room the tables take, without what is free to be used again."""
        ...
