"""Commands `stagelens storage`, `backup`, `restore` and `migrate`."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import chdir, closing, redirect_stderr, redirect_stdout
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest
from sqlalchemy import func, select

from stagelens.__main__ import main
from stagelens.collector import commands
from stagelens.collector.config import CollectorConfig
from stagelens.core.errors import StoreError
from stagelens.store import Batch, Selection, Series, Store, schema
from stagelens.store.store_factory import store_locations
from tests.store.clickhouse_server import clickhouse_server, new_database
from tests.support.postgresql_server import Server
from tests.support.raw_requests import PointAggregator, Request  # pyright: ignore[reportMissingImports] - a sibling, found once its folder is

TIMEOUT_SECONDS = 150
HOURS = 20
# A command that is killed before the fifth step of its copy.
DYING = """
import os, signal, sys
from stagelens.__main__ import main
from stagelens.store import backup

write, left = backup._write_stretch, [5]

def write_or_die(*arguments):
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    write(*arguments)

backup._write_stretch = write_or_die
main(sys.argv[1:])
"""
REQUESTS = HOURS * 25


def stagelens(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    with chdir(folder), redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as error:
        try:
            code = main(words)
        except SystemExit as exited:
            code = int(exited.code or 0)
    return subprocess.CompletedProcess(words, code, out.getvalue(), error.getvalue())


def batch(name: str, at: int) -> Batch:
    series = Series(f"service-{at % 3}", "1", route=f"/{at % 5}")
    return Batch(
        name, PointAggregator().points([Request({"queue": 1_000_000, "forward": 1_000_000 + at % 977}, at, series)])
    )


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("day") / "day.db"
    start = int(time.time()) - HOURS * 3600
    with closing(Store.open(f"sqlite:///{path}")) as opened:
        opened.write([batch(f"old-{n}", start + n // 25 * 3600 + n % 25 * 10) for n in range(REQUESTS)])
        opened.maintain()
    return path


@pytest.fixture
def store(day: Path, tmp_path: Path, open_store: Callable[..., Store]) -> Store:
    shutil.copy(day, tmp_path / "stagelens.db")
    return open_store()


def counted(store: Store) -> dict[str, object]:
    end = datetime.now(UTC) + timedelta(minutes=1)
    return {
        name: (
            store.read.latency(selection := Selection(end - timedelta(days=3), end, service=name)).buckets,
            store.read.stage_latency(selection)["forward"].buckets,
            store.read.breakdown(selection, (0.5, 0.99)).to_numpy().tolist(),
        )
        for name in store.read.services(end - timedelta(days=3), end)["service"]
    }


def counted_at(url: str) -> dict[str, object]:
    with closing(Store.open(url)) as store:
        return counted(store)


def test_storage_prints_the_size_by_tier_and_table(tmp_path: Path, store: Store) -> None:
    result = stagelens(tmp_path, "storage")

    assert (result.returncode, result.stderr) == (0, "")
    for text in ("stagelens.db: ", "a budget of 10 GiB", "10 s ", "1 min ", "1 h ", "points ", "levels off at"):
        assert text in result.stdout
    assert "never reached" in result.stdout
    assert f"{store.read.storage().tiers[0].rows:,}" in result.stdout


def test_services_are_deleted_by_name(tmp_path: Path, store: Store) -> None:
    before = counted(store)
    mistaken = stagelens(tmp_path, "storage", "forget", "service-1", "nobody-*")
    literal = stagelens(tmp_path, "storage", "forget", "service-[12]")
    result = stagelens(tmp_path, "storage", "forget", "service-1", "*-2")
    store.write([batch("again", int(time.time()) // 3 * 3 + 1)])
    after = counted(store)

    assert mistaken.returncode == 1
    assert "there is no service nobody-*; nothing was deleted" in mistaken.stderr
    assert "there is no service service-[12]; nothing was deleted" in literal.stderr
    assert (result.returncode, result.stdout.partition(".")[0]) == (0, "Deleted all data of service-1, service-2")
    assert set(before) == {"service-0", "service-1", "service-2"}
    assert after["service-0"] == before["service-0"]
    assert set(after) == {"service-0", "service-1"}
    with store.engine.connect() as connection:
        in_ledger = dict(
            connection.execute(select(schema.ledger.c.tier, func.sum(schema.ledger.c.rows)).group_by("tier")).all()
        )
        in_store = dict(connection.execute(select(schema.points.c.tier, func.count()).group_by("tier")).all())

    assert in_ledger == in_store


def test_storage_prints_no_early_forecast(tmp_path: Path, open_store: Callable[..., Store]) -> None:
    open_store().write([batch("young", int(time.time()) - 10)])
    result = stagelens(tmp_path, "storage")

    assert "projected size is not known yet: no data yet in 1 min, 10 min, 1 h" in result.stdout
    assert "never reached" not in result.stdout


@pytest.mark.usefixtures("store")
def test_a_closed_pipe_causes_no_traceback(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    # Closed before the start, because the whole output fits into the buffer of a pipe.
    os.close(reading)
    try:
        command = [sys.executable, "-m", "stagelens", "storage"]
        ours = subprocess.run(
            command, cwd=tmp_path, stdout=writing, stderr=subprocess.PIPE, timeout=TIMEOUT_SECONDS, check=False
        )
    finally:
        os.close(writing)

    assert (ours.returncode, ours.stderr) == (1, b"")


def test_storage_creates_no_store_and_changes_no_foreign_database(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "other.db")) as other:
        other.execute("CREATE TABLE mine (id INTEGER)")
        other.commit()
    for name, options in (("stagelens.db", []), ("other.db", ["--database", "sqlite:///other.db"])):
        result = stagelens(tmp_path, "storage", *options)

        assert result.returncode == 1
        assert f"there is no store in {name}; set the right one with --database" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["other.db"]
    with closing(sqlite3.connect(tmp_path / "other.db")) as other:
        assert other.execute("SELECT name FROM sqlite_master").fetchall() == [("mine",)]


def test_a_backup_during_writes_is_consistent(tmp_path: Path, store: Store) -> None:
    started, ended = threading.Event(), threading.Event()

    def write() -> None:
        number = 0
        while not ended.wait(0.005):
            number += 1
            store.write([batch(f"new-{number}", int(time.time()))])
            started.set()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert started.wait(TIMEOUT_SECONDS)
        result = stagelens(tmp_path, "backup", "backup.db")
    finally:
        ended.set()
        writer.join()
    statements = (
        "SELECT count(*) FROM batches",
        "SELECT sum(count) FROM points WHERE tier = 10 AND metric = 1",
        "SELECT sum(count) FROM points WHERE tier = 10 AND metric = 2 AND stage = 'forward'",
    )
    with closing(sqlite3.connect(tmp_path / "backup.db")) as backup:
        batches, requests, spent = (backup.execute(statement).fetchone()[0] for statement in statements)
    restored = stagelens(tmp_path, "restore", "backup.db", "--database", "sqlite:///restored.db")

    assert (result.returncode, result.stderr) == (0, "")
    assert REQUESTS < batches == requests == spent
    assert (restored.returncode, restored.stderr) == (0, "")
    assert counted_at(f"sqlite:///{tmp_path}/restored.db") == counted_at(f"sqlite:///{tmp_path}/backup.db")
    assert not list(tmp_path.glob("backup.db.part*"))


def test_a_backup_overwrites_no_file_and_is_readable_by_its_owner_only(tmp_path: Path, store: Store) -> None:
    (tmp_path / "kept.db").write_text("mine")
    (tmp_path / "backup.db.part").write_text("half of an old one")
    refused = stagelens(tmp_path, "backup", "kept.db")
    made = stagelens(tmp_path, "backup", "backup.db")

    assert refused.returncode == 1
    assert "kept.db already exists; name another file" in refused.stderr
    assert (tmp_path / "kept.db").read_text() == "mine"
    assert made.returncode == 0
    assert counted_at(f"sqlite:///{tmp_path}/backup.db") == counted(store)
    # Only its owner can read it.
    assert stat.S_IMODE((tmp_path / "backup.db").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "computing",
    [
        """ALTER TABLE points RENAME TO hidden; CREATE VIEW points AS WITH RECURSIVE more AS
        (SELECT * FROM hidden UNION ALL SELECT * FROM more) SELECT * FROM more;""",
        "CREATE TRIGGER more AFTER INSERT ON points BEGIN DELETE FROM services; END;",
    ],
)
def test_a_backup_with_views_or_triggers_is_refused(tmp_path: Path, store: Store, computing: str) -> None:
    stagelens(tmp_path, "backup", "backup.db")
    with sqlite3.connect(tmp_path / "backup.db") as connection:
        connection.executescript(computing)
    connection.close()
    before = counted(store)
    store.close()
    result = stagelens(tmp_path, "restore", "backup.db")

    assert result.returncode == 1
    assert "backup.db is not a backup of Stagelens" in result.stderr
    assert counted_at(f"sqlite:///{tmp_path}/stagelens.db") == before


def test_a_backup_without_disk_space_does_not_start(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands.shutil, "disk_usage", lambda _: SimpleNamespace(free=3 * 1024))
    config = CollectorConfig(database=str(store.engine.url))
    with pytest.raises(StoreError, match=rf"needs about \d+ KiB, and the disk of {tmp_path} has 3 KiB left; free some"):
        commands.backup(config, tmp_path / "b.db")

    assert not list(tmp_path.glob("b.db*"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["restore", "absent.db"], "there is no backup absent.db"),
        (["restore", "notes.txt"], "notes.txt: it is not an SQLite database"),
        (["restore", "empty.db"], "there is no store in empty.db"),
        (["migrate", "--to", "mysql://u:secret@h/d"], "write sqlite:///path/to/stagelens.db or postgresql://"),
        (["migrate", "--to", "sqlite:////nowhere/at/all.db"], "check that its folder exists"),
        (["migrate", "--to", "postgresql://u:secret@127.0.0.1:1/d"], "the server cannot be reached"),
        (["migrate", "--to", "sqlite:///stagelens.db"], "is not empty"),
        (["migrate"], "--to"),
        (["backup"], "FILE"),
        (["backup", "absent/backup.db"], "/absent"),
        # It would be read as settings of a database URL.
        (["backup", "q?timeout=5"], "q?timeout=5 contains a question mark"),
        (["restore", "q?timeout=5"], "q?timeout=5 contains a question mark"),
    ],
)
def test_an_error_names_what_was_wrong(tmp_path: Path, store: Store, words: list[str], message: str) -> None:
    (tmp_path / "notes.txt").write_bytes(b"these are notes, and they are long enough to be read as a header" * 100)
    (tmp_path / "empty.db").touch()
    before = counted(store)
    target = ["--database", "sqlite:///new.db"] if words[0] == "restore" else []
    result = stagelens(tmp_path, *words, *target)

    assert result.returncode != 0
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert "secret" not in result.stdout + result.stderr
    assert counted(store) == before
    assert not (tmp_path / "new.db").exists()


@pytest.mark.stacks
def test_a_store_moves_to_postgresql_and_back(tmp_path: Path, store: Store, postgresql_server: Server) -> None:
    url = postgresql_server.new_database()
    there = stagelens(tmp_path, "migrate", "--to", url)
    storage = stagelens(tmp_path, "storage", "--database", url)
    again = stagelens(tmp_path, "migrate", "--to", url)
    back = stagelens(tmp_path, "migrate", "--database", url, "--to", "sqlite:///back.db")

    assert (there.returncode, there.stderr) == (0, "")
    assert "compared, no difference" in there.stdout
    assert counted_at(url) == counted(store)
    assert "points " in storage.stdout
    assert again.returncode == 1
    assert "is not empty" in again.stderr
    assert back.returncode == 0, back.stderr
    assert counted_at(f"sqlite:///{tmp_path}/back.db") == counted(store)


@pytest.mark.stacks
def test_histograms_move_to_clickhouse(tmp_path: Path, store: Store) -> None:
    with clickhouse_server() as form:
        points = form.format(new_database()).replace("//127", "//u:secret@127") + "&ttl=off"
        result = stagelens(tmp_path, "migrate", "--to", "sqlite:///rest.db", "--to-points", points)
        storage = stagelens(tmp_path, "storage", "--database", "sqlite:///rest.db", "--points", points)
        backup = stagelens(tmp_path, "backup", "b.db", "--database", "sqlite:///rest.db", "--points", points)
    banner = "\n".join(store_locations(CollectorConfig(database="sqlite:///rest.db", points=points)))

    assert (result.returncode, result.stderr) == (0, "")
    assert storage.returncode == 0, storage.stderr
    assert backup.returncode == 0, backup.stderr
    assert counted_at(f"sqlite:///{tmp_path}/b.db") == counted(store)
    assert "clickhousedb://u:***@127.0.0.1" in banner


def test_a_killed_migration_continues(tmp_path: Path, store: Store, caplog: pytest.LogCaptureFixture) -> None:
    words = ["migrate", "--to", "sqlite:///target.db"]
    killed = subprocess.run([sys.executable, "-c", DYING, *words], cwd=tmp_path, check=False, timeout=TIMEOUT_SECONDS)
    server = stagelens(tmp_path, "up", "--database", "sqlite:///target.db")
    again = stagelens(tmp_path, *words)

    assert killed.returncode == -signal.SIGKILL
    assert server.returncode == 1
    assert "was interrupted; repeat the `stagelens migrate`" in server.stderr
    assert again.returncode == 0
    assert "continuing the interrupted copy" in caplog.text
    assert counted_at(f"sqlite:///{tmp_path}/target.db") == counted(store)
