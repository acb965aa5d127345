"""SQLAlchemy: times connections, statements and transactions of any driver, also those of async engines.

- The driver executes inside these calls. [Psycopg](psycopg.md) inside them belongs to the same stage.
- Stagelens does not read statements, parameters or rows.
"""

from __future__ import annotations

from types import MappingProxyType

from .dependency_common import DependencyInstrumentor


class SqlAlchemyInstrumentor(DependencyInstrumentor):
    """Instrumentor of the calls of a dialect to its driver."""

    library = "sqlalchemy"
    title = "SQLAlchemy"
    service = "sqlalchemy"
    stages = MappingProxyType({"dependency": "connecting, executing a statement, commit and rollback"})
    not_timed = (
        "fetching rows, except by drivers that Stagelens times",
        "compiling statements and loading objects: they run in your process",
        "drivers that replace these calls by their own, such as `executemany` of psycopg2",
    )
    tested = MappingProxyType({"SQLAlchemy": "2.1.9"})
    calls = MappingProxyType(
        {
            "sqlalchemy.engine.default": {
                "dependency": (
                    "DefaultDialect.connect",
                    "DefaultDialect.do_execute",
                    "DefaultDialect.do_execute_no_params",
                    "DefaultDialect.do_executemany",
                    "DefaultDialect.do_commit",
                    "DefaultDialect.do_rollback",
                )
            }
        }
    )
