"""An address and what it asks for: page, service, window, percentile, the state of each control.

Every view is a URL; defaults are left out, unknown keys are ignored, a wrong value falls back to its default. Nothing
about a view is kept anywhere else, so that a link opens exactly what its sender saw.

    /                     from to env              the fleet
    /s/<service>          p y x t by v             one service
    /compare              svc a b p
    /slo[/<name>]
    /traces[/<id>]        svc v dom err min
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import cached_property
from urllib.parse import parse_qsl, quote, unquote, urlencode
from zoneinfo import ZoneInfo

from ..core.errors import ConfigError
from ..core.settings import parse_duration
from .format import span

DEFAULT_WINDOW = timedelta(hours=6)
# What the time menu offers; the keys are the values of `from`.
WINDOWS = {f"now-{text}": parse_duration(text, "window") for text in ("15m", "1h", "6h", "24h", "7d", "30d")}
# Agents export every 10 s: the newest whole bucket is the last one worth showing.
BUCKET_SECONDS = 10
# Kept from page to page; everything else belongs to the page it was set on.
COMMON = ("env", "from", "to", "tz", "refresh")
# The order in a URL is fixed, so that equal views have equal addresses.
_ORDER = ("svc", "a", "b", "p", "y", "x", "t", "by", "v", "dom", "err", "min", "w", *COMMON)
_MAX_WINDOW = timedelta(days=400)


@dataclass(frozen=True)
class View:
    """One address, read.

    Args:
        path: The address without its query.
        query: The keys of the query that mean something.
        now: When it is looked at.
        zone: The reader's zone.
    """

    path: str
    query: Mapping[str, str]
    now: datetime
    zone: tzinfo = UTC

    @cached_property
    def parts(self) -> tuple[str, ...]:
        """The pieces of the path, decoded: `/s/ocr%20api` is `("s", "ocr api")`."""
        return tuple(unquote(part) for part in self.path.split("/") if part)

    @cached_property
    def end(self) -> datetime:
        """The end of the window, itself outside."""
        return _moment(self.query.get("to", ""), self._whole_now) or self._whole_now

    @cached_property
    def start(self) -> datetime:
        """The start of the window."""
        start = _moment(self.query.get("from", ""), self._whole_now) or self.end - DEFAULT_WINDOW
        if not timedelta() < self.end - start <= _MAX_WINDOW:
            return self.end - DEFAULT_WINDOW
        return start

    @property
    def live(self) -> bool:
        """Whether the window ends now, so that new data belongs into it."""
        return self.query.get("to", "now") == "now"

    @cached_property
    def window_label(self) -> str:
        """The window in words: `Last 6 h`, or from when to when."""
        if self.live and self.query.get("from", "now-").startswith("now-"):
            return f"Last {span(self.end - self.start)}"
        start, end = self.start.astimezone(self.zone), self.end.astimezone(self.zone)
        last = "now" if self.live else f"{end:%H:%M}" if start.date() == end.date() else f"{end:%-d %b %H:%M}"
        return f"{start:%-d %b %H:%M} to {last}"

    @property
    def _whole_now(self) -> datetime:
        return datetime.fromtimestamp(self.now.timestamp() // BUCKET_SECONDS * BUCKET_SECONDS, UTC)

    def choice(self, key: str, *allowed: str) -> str:
        """Return the value of *key*, which is one of *allowed*; the first of them is the default."""
        value = self.query.get(key, "")
        return value if value in allowed else allowed[0]

    @property
    def percentile(self) -> float:
        """The pinned percentile as a ratio, p99 where none is."""
        try:
            value = float(self.query.get("p", "99")) / 100
        except ValueError:
            return 0.99
        return value if 0 <= value < 1 else 0.99

    def text(self, key: str) -> str | None:
        """Return the value of *key*, None where it is not set."""
        return self.query.get(key) or None

    def link(self, path: str, **changes: str | None) -> str:
        """Return the address of *path* in the same window, with *changes* to the query."""
        kept = {key: value for key, value in self.query.items() if key in COMMON}
        return address(path, kept | {key.rstrip("_"): value or "" for key, value in changes.items()})

    def here(self, **changes: str | None) -> str:
        """Return this address with *changes* to the query; None leaves a key out."""
        return address(self.path, {**self.query, **{key.rstrip("_"): value or "" for key, value in changes.items()}})

    def with_window(self, start: datetime, end: datetime) -> str:
        """Return this address for another window."""
        return self.here(from_=_stamp(start), to=_stamp(end))


def parse(path: str | None, search: str | None, now: datetime, zone: str | None = None) -> View:
    """Read an address as the browser has it.

    Args:
        path: The path, such as `/s/ocr-api`.
        search: The query with or without its `?`.
        now: When it is looked at.
        zone: The browser's zone, such as `Europe/Berlin`; UTC when it is unknown or the address asks for it.
    """
    pairs = dict(parse_qsl((search or "").lstrip("?")))
    query = {key: pairs[key] for key in _ORDER if pairs.get(key)}
    chosen = UTC if query.get("tz") == "utc" else _zone(zone)
    return View(path or "/", query, now, chosen)


def address(path: str, query: Mapping[str, str]) -> str:
    """Return *path* with *query*, its keys in their fixed order and the empty ones left out."""
    pairs = [(key, query[key]) for key in _ORDER if query.get(key)]
    return path + ("?" + urlencode(pairs, safe=":,") if pairs else "")


def service_path(service: str) -> str:
    """Return the path of a service's page."""
    return f"/s/{quote(service, safe='')}"


def trace_name(trace_id: str, span_id: str) -> str:
    """Return what names one kept request exactly: requests of one distributed trace share its id."""
    return f"{trace_id}-{span_id}"


def trace_path(name: str) -> str:
    """Return the path of the page of the kept request *name*: its `trace_name`, or a trace id."""
    return f"/traces/{quote(name, safe='')}"


def slo_path(name: str) -> str:
    """Return the path of an objective's page."""
    return f"/slo/{quote(name, safe='')}"


def _zone(name: str | None) -> tzinfo:
    try:
        return ZoneInfo(name) if name else UTC
    except (ValueError, OSError, KeyError):  # an unknown name is a KeyError, a malformed one a ValueError
        return UTC


def _moment(text: str, now: datetime) -> datetime | None:
    """Read `now`, `now-6h`, milliseconds of the epoch or an ISO time (UTC where it names no zone)."""
    if text == "now":
        return now
    try:
        if text.startswith("now-"):
            return now - parse_duration(text.removeprefix("now-"), "from")
        if text.isdigit():
            return datetime.fromtimestamp(int(text) / 1000, UTC)
        at = datetime.fromisoformat(text)
    except (ConfigError, ValueError, OverflowError, OSError):
        return None
    return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)


def _stamp(at: datetime) -> str:
    return str(int(at.timestamp() * 1000))
