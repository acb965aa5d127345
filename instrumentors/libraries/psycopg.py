"""Psycopg: times connections, statements and transactions of Psycopg 3, also those of asyncio.

Stagelens does not read statements, parameters or rows.
"""

from __future__ import annotations

from types import MappingProxyType

from .dependency_common import DependencyInstrumentor

_CURSOR = ("execute", "executemany", "fetchone", "fetchmany", "fetchall", "scroll")
_CONNECTION = ("connect", "execute", "commit", "rollback")


def _methods(owner: str, names: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    return {"dependency": tuple(f"{owner}.{name}" for name in names)}


class PsycopgInstrumentor(DependencyInstrumentor):
    """Instrumentor of the connections and cursors of Psycopg."""

    library = "psycopg"
    title = "Psycopg"
    service = "psycopg"
    stages = MappingProxyType(
        {"dependency": "connecting, `execute`, `executemany`, `commit`, `rollback`, and fetching rows"}
    )
    not_timed = (
        "iteration over a cursor, `stream` and `copy`: your code runs between the rows",
        "the wait for a connection of `psycopg_pool`, and Psycopg 2",
    )
    tested = MappingProxyType({"psycopg": "3.3.9"})
    calls = MappingProxyType(
        {
            # Bound when the package was imported, before the patch of its class.
            "psycopg": {"dependency": ("connect",)},
            "psycopg.cursor": _methods("Cursor", _CURSOR),
            "psycopg.cursor_async": _methods("AsyncCursor", _CURSOR),
            "psycopg._server_cursor": _methods("ServerCursor", _CURSOR),
            "psycopg._server_cursor_async": _methods("AsyncServerCursor", _CURSOR),
            "psycopg.connection": _methods("Connection", _CONNECTION),
            "psycopg.connection_async": _methods("AsyncConnection", _CONNECTION),
        }
    )
