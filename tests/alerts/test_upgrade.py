"""A store that an earlier version wrote, with rows in every table, gives the same results in this version."""

from __future__ import annotations

import json
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Barrier

import pytest

from stagelens.__main__ import main
from stagelens.store import Store
from tests.alerts.full_store import clock, columns, fill, results_of, rows

VERSIONS = sorted((Path(__file__).parent / "schemas").glob("*.sql"))
OPENERS = 4


def test_every_table_has_rows(store: Store) -> None:
    fill(store)

    assert [name for name, held in rows(store, columns(store)).items() if not held] == ["intents"]


@pytest.fixture(params=VERSIONS, ids=lambda path: path.stem)
def earlier(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, dict[str, str]]:
    file, statements = tmp_path / "earlier.db", request.param
    with closing(sqlite3.connect(file)) as database:
        database.executescript(statements.read_text(encoding="utf-8"))
    return file, json.loads(statements.with_suffix(".json").read_text(encoding="utf-8"))


def test_results_of_an_earlier_version_are_equal_in_all_processes(earlier: tuple[Path, dict[str, str]]) -> None:
    file, before = earlier
    together = Barrier(OPENERS)

    def start(_number: int) -> dict[str, str]:
        together.wait()
        with closing(Store.open(f"sqlite:///{file}", clock=clock)) as store:
            return results_of(store)

    with ThreadPoolExecutor(OPENERS) as pool:
        assert list(pool.map(start, range(OPENERS))) == [before] * OPENERS


def test_a_backup_of_an_earlier_version_can_be_restored(
    earlier: tuple[Path, dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backup, before = earlier
    monkeypatch.setenv("STAGELENS_DATABASE", f"sqlite:///{tmp_path / 'new.db'}")
    code = main(["restore", str(backup)])
    with closing(Store.open(f"sqlite:///{tmp_path / 'new.db'}", clock=clock)) as store:
        after = results_of(store)

    assert code == 0
    # Rows of the same key are added up during the copy.
    assert {**after, "storage": ""} == {**before, "storage": ""}
