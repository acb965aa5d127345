"""A store of an earlier schema, with something in every table, opened by this version: it says what it said before."""

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
from tests.alerts.full_store import clock, fill, rows, said

WRITTEN_DOWN = sorted((Path(__file__).parent / "schemas").glob("*.sql"))
OPENERS = 4


def previous_revision() -> str:
    """The schema before this version's."""
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
    """Where a full store is, of each engine."""
    fill(store)
    return store.engine.url.render_as_string(hide_password=False)


def test_every_table_has_something_in_it(store: Store) -> None:
    """What is not there cannot be lost: a new table has to be filled here."""
    fill(store)

    assert [name for name, held in rows(store).items() if not held and name not in ("intents", "moves")] == []


def test_a_full_store_of_the_previous_schema_says_the_same(store: Store, url: str) -> None:
    """Every answer, and every row of every table that the previous schema had."""
    before = said(store)
    database.migrate(store.engine, previous_revision())
    held = rows(store)
    upgraded = Store.open(url, clock=clock)
    after, there = said(upgraded), rows(upgraded)
    upgraded.close()

    assert after == before
    assert {name: there[name] for name in held} == held


def test_those_that_start_during_the_upgrade_wait_for_it(store: Store, url: str) -> None:
    """Several open the old store at once: one upgrades it, and each finds it whole."""
    before = said(store)
    database.migrate(store.engine, previous_revision())
    together = Barrier(OPENERS)

    def start(_number: int) -> tuple[str, dict[str, str]]:
        together.wait()
        opened = Store.open(url, clock=clock)
        try:
            return revision_of(opened), said(opened)
        finally:
            opened.close()

    with ThreadPoolExecutor(OPENERS) as pool:
        found = list(pool.map(start, range(OPENERS)))

    assert [answers for _, answers in found] == [before] * OPENERS
    assert {revision for revision, _ in found} == {found[0][0]} != {previous_revision()}


@pytest.fixture(params=WRITTEN_DOWN, ids=lambda path: path.stem)
def left(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A store as an earlier version left it, and what that version said of it."""
    file, statements = tmp_path / "left.db", request.param
    with closing(sqlite3.connect(file)) as made:
        made.executescript(statements.read_text(encoding="utf-8"))
    return file, json.loads(statements.with_suffix(".json").read_text(encoding="utf-8"))


def test_what_an_earlier_version_wrote_is_read_as_it_read_it(left: tuple[Path, dict[str, str]]) -> None:
    """The file and the answers were made by that version itself, not by our way back to it."""
    file, before = left
    store = Store.open(f"sqlite:///{file}", clock=clock)
    after = said(store)
    store.close()

    assert after == before


def test_a_backup_of_an_earlier_version_can_be_restored(
    left: tuple[Path, dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Into an empty store of this version, which then says the same."""
    backup, before = left
    monkeypatch.setenv("STAGELENS_DATABASE", f"sqlite:///{tmp_path / 'new.db'}")
    code = main(["restore", str(backup)])
    store = Store.open(f"sqlite:///{tmp_path / 'new.db'}", clock=clock)
    after = said(store)
    store.close()

    assert code == 0
    # Rows of the same key are added up on the way.
    assert {**after, "storage": ""} == {**before, "storage": ""}
