"""Opening of a store, and errors that explain why it fails."""

from __future__ import annotations

import sqlite3
import stat
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import MetaData, event

from stagelens.core.errors import StoreError
from stagelens.store import Store, schema
from stagelens.store.engines import database
from tests.support.raw_requests import OpenSite, Site


def test_a_new_file_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    with closing(Store.open(f"sqlite:///{path}")) as store:
        modes = {stat.S_IMODE(each.stat().st_mode) for each in tmp_path.iterdir()}
        path.chmod(0o640)
        store.read.state()
    Store.open(f"sqlite:///{path}").close()

    assert modes == {0o600}
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_the_file_is_safe_for_one_writer_and_many_readers(open_sqlite: OpenSite) -> None:
    with open_sqlite().store.engine.connect() as connection:
        found = [
            connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous", "page_size")
        ]

    assert found == ["wal", 2, 4096]


@pytest.mark.parametrize(
    ("url", "words"),
    [
        *[
            (url, r"sqlite:///path/to/stagelens\.db")
            for url in ("mysql://host/db", "postgres://u:secret@h/d", "sqlite://", "sqlite:///:memory:", "s.db", "")
        ],
        ("postgresql://me:top@secret@host:here/db", "'host:here/db' cannot be read; write sqlite:///"),
    ],
)
def test_an_unsupported_url_is_refused_without_its_password(url: str, words: str) -> None:
    with pytest.raises(StoreError, match=words) as refused:
        Store.open(url)

    assert "secret" not in str(refused.value)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"absent/s\.db.*folder exists"):
        Store.open(f"sqlite:///{tmp_path}/absent/s.db")


def test_a_file_that_is_not_a_database_is_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(b"these are notes, and they are long enough to be read as a header" * 100)
    before = path.read_bytes()

    with pytest.raises(StoreError, match=r"notes\.txt.*not an SQLite database"):
        Store.open(f"sqlite:///{path}")
    assert path.read_bytes() == before


def test_a_database_of_a_newer_version_is_refused(site: Site) -> None:
    with site.store.transaction() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")

    with pytest.raises(StoreError, match=r"newer Stagelens \(schema 9999\); upgrade"):
        site.reopen()


def test_a_database_of_another_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE series (id INTEGER)")
    other.close()

    with pytest.raises(StoreError, match=r"cannot open .*other\.db.*series already exists"):
        Store.open(f"sqlite:///{path}")
    with sqlite3.connect(path) as other:
        tables = [row[0] for row in other.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    other.close()
    assert tables == ["series"]


def test_a_read_only_file_is_named(sqlite: Site) -> None:
    path = sqlite.url.removeprefix("sqlite:///")

    with pytest.raises(StoreError, match=r"stagelens\.db: it is read-only; give this user the right"):
        Store.open(f"sqlite:///file:{path}?mode=ro&uri=true")


def test_several_processes_can_open_a_new_database_together(site: Site) -> None:
    tables = MetaData()
    tables.reflect(site.store.engine)
    tables.drop_all(site.store.engine)
    stores: list[Store] = []
    threads = [threading.Thread(target=lambda: stores.append(site.another().store)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [store.read.revision() for store in stores] == [0, 0, 0, 0]


def test_opening_waits_for_the_creation_by_another_process(tmp_path: Path) -> None:
    class Refused(sqlite3.Connection):
        refusals = 2

        def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
            if "journal_mode" in sql and self.refusals:
                self.refusals -= 1
                msg = "database is locked"
                raise sqlite3.OperationalError(msg)
            return super().execute(sql, *parameters)

    engine = database.open_engine(f"sqlite:///{tmp_path}/s.db")
    event.listen(
        engine,
        "do_connect",
        lambda _dialect, _record, arguments, options: sqlite3.connect(*arguments, **options, factory=Refused),  # pyright: ignore[reportUnknownLambdaType]
    )
    with engine.connect() as connection:
        mode = connection.exec_driver_sql("PRAGMA journal_mode").scalar()
    engine.dispose()

    assert mode == "wal"


def test_migrations_create_the_schema_of_the_code(open_site: OpenSite) -> None:
    with open_site().store.engine.connect() as connection:
        context = MigrationContext.configure(
            connection, opts={"include_name": lambda name, kind, _: kind != "table" or name in schema.metadata.tables}
        )
        differences = compare_metadata(context, schema.metadata)

    assert differences == []
