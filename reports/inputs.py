"""The two sides of a comparison: files, which are counted into a store of their own, or versions and windows of a store that is there."""

from __future__ import annotations

import sys
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from ..alerts.regression.version_times import Life, version_times
from ..collector.imports.importing import import_file
from ..collector.points import Window
from ..collector.traces.sampling import Keep
from ..core.errors import ConfigError, StagelensError
from ..store import Reader, Retention, Selection, Store
from .comparison import Side
from .folders import folder_for

_EVER = timedelta(days=36_500)
_BEGINNING = datetime(1970, 1, 2, tzinfo=UTC)
_BUCKET = timedelta(seconds=10)
_AHEAD = timedelta(days=1)
# A comparison asks for numbers only.
_NO_TRACES = Keep(errors=0, slow=0, uniform=0)


class NothingError(StagelensError):
    """A side has no requests."""


@contextmanager
def of_files(paths: Sequence[Path], asked: Selection) -> Generator[tuple[Reader, Side, Side]]:
    """Give what is in two files, of any format that `stagelens import` reads.

    Args:
        paths: Two of them.
        asked: Which requests; its environment is that of neither file, for it tells them apart here.

    Raises:
        ImportFileError: One of them cannot be read.
        ConfigError: It holds several services, and *asked* names none of them.
        NothingError: It holds no request that was asked for.
    """
    retention = Retention(seconds_10=_EVER, minutes=_EVER, hours=_EVER, traces=_EVER, batches=_EVER)
    with ExitStack() as stack:
        folder = stack.enter_context(folder_for("compare"))
        store = Store.open(f"sqlite:///{folder / 'compare.db'}", retention=retention)
        stack.callback(store.close)
        sides: list[Side] = []
        for name, path in zip("ab", paths, strict=True):
            found = import_file(path, store, Window(0, sys.maxsize), keep=_NO_TRACES, environment=name)
            for each in found.broken:
                print(f"stagelens: {path}: left out: {each}", file=sys.stderr)
            service = _service(list(found.services), asked.service, str(path))
            sides.append(Side(str(path), replace(asked, service=service, environment=name)))
        yield store.read, *_with_requests(store.read, sides)


def of_versions(read: Reader, asked: Selection, versions: Sequence[str], window: timedelta) -> tuple[Side, Side]:
    """Return two *versions* over the last *window* in which both served; if one followed the other, each over its own last one.

    Raises:
        ConfigError: One of them is not known, or the service is not.
        NothingError: There is nothing to compare.
    """
    service = _known_service(read, asked)
    known = read.releases(environment=asked.environment)
    of_service = known[known["service"] == service]
    lives: list[Life] = []
    for version in versions:
        seen = of_service[of_service["version"] == version]
        if seen.empty:
            there = ", ".join(str(each) for each in of_service["version"]) or "none"
            msg = f"{service} has no version {version!r}; there are {there}"
            raise ConfigError(msg)
        first, last = seen["first_seen"].min().to_pydatetime(), seen["last_seen"].max().to_pydatetime()
        lives.append(Life(first, last + _BUCKET))

    def side(version: str, life: Life) -> Side:
        start, end = read.whole(max(life.start, life.end - window), life.end)
        return Side(version, replace(asked, service=service, version=version, start=start, end=end), has_window=True)

    def sides(first: Life, second: Life) -> list[Side]:
        return [side(version, life) for version, life in zip(versions, (first, second), strict=True)]

    def fewest(first: Life, second: Life) -> int:
        return min(read.latency(each.selection).count for each in sides(first, second))

    times = version_times(lives[0], lives[1], fewest)
    return _with_requests(read, sides(times.a, times.b))


def of_windows(read: Reader, asked: Selection, windows: Sequence[str]) -> tuple[Side, Side]:
    """Return two windows, each written FROM/TO in ISO 8601, UTC where they say nothing else.

    Raises:
        ConfigError: One of them is none, or the service is not known.
        NothingError: There is nothing to compare.
    """
    service = _known_service(read, asked)
    sides: list[Side] = []
    for window in windows:
        start, end = read.whole(*_window(window))
        sides.append(Side(window, replace(asked, service=service, start=start, end=end), has_window=True))
    return _with_requests(read, sides)


def asked_for(service: str | None, environment: str | None, route: str | None) -> Selection:
    """Return all requests of so much of a store, whenever they were."""
    end = datetime.fromtimestamp(time.time(), UTC) + _AHEAD
    return Selection(_BEGINNING, end, service=service, environment=environment, route=route)


def _window(text: str) -> tuple[datetime, datetime]:
    try:
        start, end = (datetime.fromisoformat(part) for part in text.split("/"))
    except ValueError:
        msg = f"--windows {text!r}: write FROM/TO, such as 2026-11-01T09:00Z/2026-11-01T10:00Z"
        raise ConfigError(msg) from None
    start, end = (at if at.tzinfo else at.replace(tzinfo=UTC) for at in (start, end))
    if start >= end:
        msg = f"--windows {text!r}: ends before it begins"
        raise ConfigError(msg)
    return start, end


def _known_service(read: Reader, asked: Selection) -> str:
    known = [str(each) for each in read.services(asked.start, asked.end, environment=asked.environment)["service"]]
    return _service(known, asked.service, "the store")


def _service(known: Sequence[str], asked: str | None, where: str) -> str:
    if asked in known:
        return asked or ""
    there = ", ".join(known)
    if not known:
        msg = f"{where} holds no request"
        raise NothingError(msg)
    if asked is not None:
        msg = f"{where} has no service {asked!r}; there are {there}"
        raise ConfigError(msg)
    if len(known) > 1:
        msg = f"{where} has several services ({there}); choose one with --service"
        raise ConfigError(msg)
    return known[0]


def _with_requests(read: Reader, sides: Sequence[Side]) -> tuple[Side, Side]:
    for side in sides:
        if not read.latency(side.selection).count:
            of_route = f" of route {side.selection.route!r}" if side.selection.route else ""
            msg = f"{side.name} has no request{of_route} of {side.selection.service}"
            raise NothingError(msg)
    a, b = sides
    return a, b
