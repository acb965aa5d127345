"""Interface of a relational database engine, implemented by the modules `sqlite` and `postgresql`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from sqlalchemy import Connection, Engine
from sqlalchemy.engine import URL

from ...core.errors import StoreError
from ..rows import PointRow


class InUseError(StoreError):
    """The data to free are being read: try again later."""


class Dialect(Protocol):
    """One kind of relational database."""

    @property
    def FIXES(self) -> Sequence[tuple[str, str]]:  # noqa: N802 - a constant of the module
        """Parts of the driver's error messages, in lower case, and the fix for each."""
        ...

    @property
    def FREED_SECONDS(self) -> Mapping[int, int]:  # noqa: N802 - a constant of the module
        """Length of time that `free` frees at once, by tier of `points`, in seconds."""
        ...

    def open_engine(self, url: URL, budget_bytes: int | None) -> Engine:
        """Return the engine of the database at *url*, nothing opened yet; it refuses to grow past *budget_bytes* if it can.

        Raises:
            StoreError: *url* lacks something.
        """
        ...

    def location(self, url: URL) -> str:
        """Return the name of the database at *url* for messages, without its password."""
        ...

    def for_reading(self, connection: Connection) -> Connection:
        """Give the transactions of *connection* a consistent snapshot."""
        ...

    def hold(self, connection: Connection, /) -> None:
        """Protect `points` from changes that the snapshot of the new transaction does not see."""
        ...

    def for_writing(self, connection: Connection) -> Connection:
        """Prepare the transactions of *connection* for writing."""
        ...

    def lock(self, connection: Connection, /) -> None:
        """Wait, in the new transaction, for the write lock, which is held until its end."""
        ...

    def exclusive(self, connection: Connection) -> AbstractContextManager[None]:
        """Hold the write lock over several transactions of *connection*."""
        ...

    def insert_points(self, connection: Connection, rows: Sequence[PointRow]) -> None:
        """Insert *rows* into `points`."""
        ...

    def insert_rows(
        self, connection: Connection, table: str, columns: Sequence[str], rows: Sequence[tuple[Any, ...]]
    ) -> None:
        """Insert *rows* of *columns* into *table* without SQLAlchemy, which takes longer over them than the database does."""
        ...

    def free(self, connection: Connection, tier: int, until: int) -> None:
        """Delete what *tier* holds before *until*, or as much of it as can be deleted at once.

        Raises:
            InUseError: Somebody reads it.
        """
        ...

    def compact_traces(self, connection: Connection, /) -> bool:
        """Reclaim the space of deleted traces; return whether there was any."""
        ...

    def used_bytes(self, connection: Connection) -> int:
        """Return the size of the tables, without reusable free space."""
        ...
