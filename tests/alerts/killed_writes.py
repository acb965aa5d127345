"""A process that is killed before one of its writes to the database."""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import event

from stagelens.store import Store


class Killed(BaseException):
    """Simulated kill of the process."""


@contextmanager
def killed_at(store: Store, write: int, tables: str = "") -> Generator[list[int]]:
    """Raise `Killed` before the write with the number *write* to *tables* (a regular expression); count the writes."""
    seen = [0]

    def on_statement(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        if re.match(rf"\s*(INSERT|UPDATE|DELETE)\b.*{tables}", statement, re.DOTALL | re.IGNORECASE):
            seen[0] += 1
            if seen[0] == write:
                raise Killed

    event.listen(store.engine, "before_cursor_execute", on_statement)
    try:
        yield seen
    finally:
        event.remove(store.engine, "before_cursor_execute", on_statement)
