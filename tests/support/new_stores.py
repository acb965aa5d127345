"""New SQLite stores get the tables that the migrations make, without the migrations: they take 60 ms, and tests open thousands."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path

from sqlalchemy import Engine

from stagelens.store.engines import database


class FastMigration:
    """Replaces `database.migrate`; whatever is not a new SQLite file is migrated as ever."""

    def __init__(self, migrate: Callable[[Engine], None], folder: Path) -> None:
        self._migrate = migrate
        self._folder = folder

    def __call__(self, engine: Engine) -> None:
        if not (engine.dialect.name == "sqlite" and self._made(engine)):
            self._migrate(engine)

    def _made(self, engine: Engine) -> bool:
        with database.writing(engine, "cannot open") as connection:
            if connection.exec_driver_sql("SELECT count(*) FROM sqlite_master").scalar():
                return False
            for statement in self._statements:
                connection.exec_driver_sql(statement)
            return True

    @cached_property
    def _statements(self) -> list[str]:
        engine = database.open_engine(f"sqlite:///{self._folder / 'migrated.db'}")
        self._migrate(engine)
        with engine.connect() as connection:
            dump = list(connection.connection.driver_connection.iterdump())  # pyright: ignore[reportOptionalMemberAccess]
        engine.dispose()
        return [statement for statement in dump if statement not in ("BEGIN TRANSACTION;", "COMMIT;")]
