"""A store of an earlier schema with rows in every table gives the same results in this version."""

from __future__ import annotations

import json
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Barrier

import pytest
from alembic.script import ScriptDirectory
from sqlalchemy import text

from stagelens.__main__ import main
from stagelens.store import Store
from stagelens.store.engines import database
from tests.alerts.full_store import clock, columns, fill, results_of, rows

WRITTEN_DOWN = sorted((Path(__file__).parent / "schemas").glob("*.sql"))
OPENERS = 4


def previous_revision() -> str:
    """Schema revision before the current one."""
    script = ScriptDirectory(str(Path(database.__file__).parents[1] / "migrations"))
    head = script.get_current_head()
    assert head is not None
    revision = script.get_revision(head).down_revision
    assert isinstance(revision, str)
    return revision


def revision_of(store: Store) -> str:
    with store.engine.connect() as connection:
        return connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one()


@pytest.fixture
def url(store: Store) -> str:
    """URL of a store with rows in every table, for each engine."""
    fill(store)
    return store.engine.url.render_as_string(hide_password=False)


def test_every_table_has_rows(store: Store) -> None:
    fill(store)

    assert [
        name for name, held in rows(store, columns(store)).items() if not held and name not in ("intents", "moves")
    ] == []


def test_an_upgraded_store_of_the_previous_schema_gives_equal_results(store: Store, url: str) -> None:
    before = results_of(store)
    database.migrate(store.engine, previous_revision())
    known = columns(store)
    held = rows(store, known)
    upgraded = Store.open(url, clock=clock)
    after, there = results_of(upgraded), rows(upgraded, known)
    upgraded.close()

    # The upgrade adds tiers.
    there["rollups"] = [row for row in there["rollups"] if row in held["rollups"]]
    assert after == before
    assert there == held


def test_processes_started_during_the_upgrade_wait(store: Store, url: str) -> None:
    before = results_of(store)
    database.migrate(store.engine, previous_revision())
    together = Barrier(OPENERS)

    def start(_number: int) -> tuple[str, dict[str, str]]:
        together.wait()
        opened = Store.open(url, clock=clock)
        try:
            return revision_of(opened), results_of(opened)
        finally:
            opened.close()

    with ThreadPoolExecutor(OPENERS) as pool:
        found = list(pool.map(start, range(OPENERS)))

    assert [results for _, results in found] == [before] * OPENERS
    assert {revision for revision, _ in found} == {found[0][0]} != {previous_revision()}


@pytest.fixture(params=WRITTEN_DOWN, ids=lambda path: path.stem)
def left(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """Store and results written by an earlier version."""
    file, statements = tmp_path / "left.db", request.param
    with closing(sqlite3.connect(file)) as made:
        made.executescript(statements.read_text(encoding="utf-8"))
    return file, json.loads(statements.with_suffix(".json").read_text(encoding="utf-8"))


def test_results_of_an_earlier_version_are_equal(left: tuple[Path, dict[str, str]]) -> None:
    file, before = left
    store = Store.open(f"sqlite:///{file}", clock=clock)
    after = results_of(store)
    store.close()

    assert after == before


def test_a_backup_of_an_earlier_version_can_be_restored(
    left: tuple[Path, dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backup, before = left
    monkeypatch.setenv("STAGELENS_DATABASE", f"sqlite:///{tmp_path / 'new.db'}")
    code = main(["restore", str(backup)])
    store = Store.open(f"sqlite:///{tmp_path / 'new.db'}", clock=clock)
    after = results_of(store)
    store.close()

    assert code == 0
    # Rows of the same key are added up during the copy.
    assert {**after, "storage": ""} == {**before, "storage": ""}
