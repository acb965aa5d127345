"""SQLite: files that are removed or replaced while they are open."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import event

from stagelens.core.errors import StoreError
from stagelens.store import Batch, Store

REMOVED = "removed or replaced while it was open; put the same files back, or restart"


def a_valid_store(path: Path) -> None:
    Store.open(f"sqlite:///{path}").close()


def a_link_to_another(path: Path) -> None:
    a_valid_store(path.with_name("another.db"))
    path.symlink_to(path.with_name("another.db"))


@pytest.mark.parametrize(
    ("removed", "replace"),
    [
        (("", "-wal", "-shm"), None),
        (("",), None),
        (("-wal",), None),
        (("-shm",), None),
        (("-wal",), Path.touch),
        (("", "-wal", "-shm"), Path.touch),
        (("", "-wal", "-shm"), a_valid_store),
        (("", "-wal", "-shm"), a_link_to_another),
    ],
)
@pytest.mark.parametrize("is_linked", [False, True])
def test_files_that_a_restart_would_not_open_are_not_used(
    tmp_path: Path, removed: tuple[str, ...], replace: Callable[[Path], object] | None, is_linked: bool
) -> None:
    path = tmp_path / "folder" / "link.db" if is_linked else tmp_path / "s.db"
    if is_linked:
        path.parent.mkdir()
        path.symlink_to(tmp_path / "s.db")
    store = Store.open(f"sqlite:///{path}")
    store.write([Batch("before", [])])
    places = [path if is_linked and not suffix else tmp_path / f"s.db{suffix}" for suffix in removed]
    held = [place.rename(tmp_path / f"removed-{number}") for number, place in enumerate(places)]
    if replace is not None:
        replace(places[0])
    found = {entry.name for entry in tmp_path.rglob("*")}
    # A second connection must not open the other file.
    connection = store.engine.connect()
    for call in (store.maintain, store.services, lambda: store.write([Batch("after", [])])):
        with pytest.raises(StoreError, match=REMOVED):
            call()
    connection.close()

    assert {entry.name for entry in tmp_path.rglob("*")} == found

    for place, each in zip(places, held, strict=True):
        each.replace(place)
    again = store.write([Batch("before", []), Batch("after", [])])
    store.close()

    assert again == [False, True]


def test_a_batch_is_not_acknowledged_if_the_file_is_removed_during_its_write(tmp_path: Path) -> None:
    store = Store.open(f"sqlite:///{tmp_path}/folder.db")
    event.listen(store.engine, "commit", lambda _: shutil.rmtree(tmp_path))
    with pytest.raises(StoreError, match=REMOVED):
        store.write([Batch("lost", [])])
    store.close()
