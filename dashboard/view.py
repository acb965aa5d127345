"""Address of a page, parsed into page, service, window, percentile and the state of each control.

Every view is a URL: default values are omitted, unknown keys are ignored, and an invalid value is replaced by its default.
No other state of a view exists, so that a link opens exactly the view of its sender.

    /                     kind q sort by at rank n    fleet
    /s/<service>          p y x t by d sel hide v m r cold    breakdown of one service
    /s/<service>/tokens   /capacity /replicas /advice /traces
    /compare              svc a b p m r cold
    /regressions
    /slo[/<name>]         w v m r
    /incidents[/<id>]
    /traces[/<id>]        svc v m r cold dom err min max at t n
    /advice               rank
    /events               kind
    /collectors
    /settings

Every address also accepts `env from to vs tz refresh`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, tzinfo
from functools import cached_property
from urllib.parse import parse_qsl, unquote, urlencode
from zoneinfo import ZoneInfo

from ..core.addresses import name_of_segment, path_segment
from ..core.errors import ConfigError
from ..core.settings.values import parse_duration
from ..core.text import is_whole_number
from ..store.schema import storable, storable_name
from .ui.format import day, span, time_range

DEFAULT_WINDOW = timedelta(hours=6)
# Presets of the time menu; the keys are values of `from`.
WINDOWS = {f"now-{text}": parse_duration(text, "window") for text in ("15m", "1h", "6h", "24h", "7d", "30d")}
# API paths that are not pages.
API_PREFIX = "/api/"
INCIDENTS_API, SILENCES_API = f"{API_PREFIX}v1/incidents", f"{API_PREFIX}v1/silences"
# Windows end with a whole bucket: agents export every 10 s, so the current bucket is incomplete.
BUCKET_SECONDS = 10
# Query keys that are passed on in links between pages; all others belong to one page.
COMMON = ("env", "from", "to", "vs", "tz", "refresh")
# Scope within a service, passed on between its pages: query key to field of `store.Selection`.
SCOPE = {"v": "version", "m": "model", "r": "route", "cold": "cold"}
# Values of `cold`: without requests during which something was loaded, or only these.
WITHOUT_COLD, ONLY_COLD = "0", "1"
# Values of `vs` with the distance of the compared window, default first; `prev` is the preceding window of the same length.
COMPARED = {"prev": None, "1d": timedelta(days=1), "7d": timedelta(days=7), "off": None}
_COMPARED_WORDS = {"prev": "vs prev.", "1d": "vs yesterday", "7d": "vs last week", "off": ""}
# Maximum number of attributes in `at`: each one may take a search of all spans.
_MAX_ATTRIBUTES = 8
# The key order in a URL is fixed, so that equal views have equal addresses.
ORDER = (
    *("svc", "a", "b", "p", "y", "x", "t", "by", "hide", *SCOPE, "dom", "err", "min", "max", "at", "sel", "d", "w"),
    *("kind", "q", "sort", "n", "rank"),
    *COMMON,
)
_MAX_WINDOW = timedelta(days=400)
# Range of valid times; stores and charts cannot represent all dates.
_MOMENTS = datetime(1970, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class View:
    """Parsed address of a page."""

    path: str
    query: Mapping[str, str]
    now: datetime
    zone: tzinfo = UTC
    fixed_window: tuple[datetime, datetime] | None = None

    @cached_property
    def parts(self) -> tuple[str, ...]:
        """Names in the path: `/s/ocr%20api` is `("s", "ocr api")`."""
        return tuple(storable(name_of_segment(part)) for part in self.path.split("/") if part)

    @cached_property
    def end(self) -> datetime:
        if self.fixed_window is not None:
            return self.fixed_window[1]
        return _moment(self.query.get("to", ""), self._whole_now) or self._whole_now

    @cached_property
    def start(self) -> datetime:
        if self.fixed_window is not None:
            return self.fixed_window[0]
        asked = self._asked_start
        return asked if asked is not None and self._may_begin(asked) else self.end - DEFAULT_WINDOW

    @property
    def is_as_asked(self) -> bool:
        """Whether the window is the requested one; a reversed window or one longer than 400 days is replaced."""
        asked = self._asked_start
        return asked is None or self._may_begin(asked)

    @property
    def _asked_start(self) -> datetime | None:
        return _moment(self.query.get("from", ""), self._whole_now)

    def _may_begin(self, start: datetime) -> bool:
        return timedelta() < self.end - start <= _MAX_WINDOW

    @property
    def live(self) -> bool:
        return self.query.get("to", "now") == "now"

    @property
    def past_end(self) -> datetime | None:
        """End of a past window; None if the window reaches the present."""
        return None if self.live or self.end > self.now else self.end

    @property
    def happened_before(self) -> datetime:
        """End of the window for events: a window that ends now includes events after its last whole bucket."""
        return max(self.end, self._whole_now + timedelta(seconds=BUCKET_SECONDS)) if self.live else self.end

    @cached_property
    def window_label(self) -> str:
        if self.live and self.query.get("from", "now-").startswith("now-"):
            return f"Last {span(self.end - (self._asked_start or self.end - DEFAULT_WINDOW))}"
        if self.live:
            return f"{day(self.start.astimezone(self.zone))} to now"
        return time_range(self.start, self.end, self.zone)

    @property
    def zone_name(self) -> str:
        """Zone of the times, with its distance to UTC in the window: `Europe/Berlin (UTC+02:00, then +01:00)`."""
        offsets = dict.fromkeys(at.astimezone(self.zone).isoformat()[-6:] for at in (self.start, self.end))
        return "UTC" if str(self.zone) == "UTC" else f"{self.zone} (UTC{', then '.join(offsets)})"

    @property
    def window_phrase(self) -> str:
        """Window as part of a sentence: `in the last 6 h`, or `from` its start `to` its end."""
        label = self.window_label
        return f"in the {label[0].lower()}{label[1:]}" if label.startswith("Last") else f"from {label}"

    @property
    def compared_back(self) -> timedelta | None:
        """Distance to the compared window; None without a compared window."""
        chosen = self.choice("vs", *COMPARED)
        return self.end - self.start if chosen == "prev" else COMPARED[chosen]

    @property
    def compared_words(self) -> str:
        return _COMPARED_WORDS[self.choice("vs", *COMPARED)]

    @property
    def complete_until(self) -> datetime:
        """Time before which agents have sent all requests: they send every 10 s, so a bucket is complete 10 s after its end."""
        return min(self.end, self._whole_now - timedelta(seconds=BUCKET_SECONDS))

    @property
    def controls(self) -> frozenset[str]:
        """Controls of the header with an effect on this page: `time`, `later`, `vs`, `env` and `refresh`."""
        match self.parts:
            case ("traces", _):
                controls = set[str]()
            case ("collectors",) | ("settings",) | ("incidents", _):
                controls = {"refresh"}
            case ("audit",):
                controls = {"time", "later", "refresh"}
            case () | ("compare",) | ("s", _) | ("s", _, "tokens"):
                controls = {"time", "later", "vs", "env", "refresh"}
            case _:
                controls = {"time", "later", "env", "refresh"}
        # A window that ends now has nothing later, and a past window nothing new.
        return frozenset(controls - {"later" if self.live else "refresh"})

    @property
    def _whole_now(self) -> datetime:
        return datetime.fromtimestamp(self.now.timestamp() // BUCKET_SECONDS * BUCKET_SECONDS, UTC)

    def choice(self, key: str, *allowed: str) -> str:
        value = self.query.get(key, "")
        return value if value in allowed else allowed[0]

    @property
    def percentile(self) -> float:
        """Pinned percentile as a ratio, p99 by default; a value below 1, which is probably a ratio, is invalid."""
        try:
            value = float(self.query.get("p", "99")) / 100
        except ValueError:
            return 0.99
        return value if value == 0 or 0.01 <= value < 1 else 0.99  # noqa: PLR2004 - p1

    def text(self, key: str) -> str | None:
        return self.query.get(key) or None

    @cached_property
    def scope(self) -> dict[str, str]:
        """Scope within the service, by the keys of `SCOPE`, with names as in the store; empty for all requests."""
        return {key: storable_name(self.query[key]) for key in SCOPE if key in self.query}

    @property
    def scope_of_all_versions(self) -> dict[str, str]:
        return {key: name for key, name in self.scope.items() if key != "v"}

    @cached_property
    def attributes(self) -> tuple[tuple[str, str], ...]:
        """Attributes of `at`, which has the form of `attributes_text`: keys and values, "" for any value."""
        parts = (text.strip().partition(":") for text in self.query.get("at", "").split(","))
        pairs = (tuple(storable(unquote(part.strip())) for part in (key, value)) for key, _, value in parts)
        return tuple((key, value) for key, value in pairs if key)[:_MAX_ATTRIBUTES]

    def page_of(self, pages: int) -> int:
        asked = self.query.get("n", "1")
        return min(max(int(asked), 1), max(pages, 1)) if is_whole_number(asked) else 1

    def of_whole_services(self) -> View:
        return replace(self, query={key: value for key, value in self.query.items() if key not in SCOPE})

    def link(self, path: str, **changes: str | None) -> str:
        common = {key: value for key, value in self.query.items() if key in COMMON}
        return address(path, common | {key.rstrip("_"): value or "" for key, value in changes.items()})

    def here(self, **changes: str | None) -> str:
        """Return this address with *changes* to the query; None removes a key. Another list starts at its first page."""
        retained = {key: value for key, value in self.query.items() if key != "n" or not changes}
        return address(self.path, {**retained, **{key.rstrip("_"): value or "" for key, value in changes.items()}})

    def with_window(self, start: datetime, end: datetime) -> str:
        return self.here(from_=_stamp(start), to=_stamp(end))


def parse(path: str | None, search: str | None, now: datetime, zone: str | None = None) -> View:
    """Parse an address of the browser."""
    pairs = dict(parse_qsl((search or "").lstrip("?")))
    query = {key: storable(pairs[key]) for key in ORDER if pairs.get(key)}
    if query.get("cold") not in (WITHOUT_COLD, ONLY_COLD):
        query.pop("cold", None)
    chosen = UTC if query.get("tz") == "utc" else _zone(zone)
    return View(path or "/", query, now, chosen)


def address(path: str, query: Mapping[str, str]) -> str:
    """Return *path* with *query*, its keys in fixed order, without empty values."""
    pairs = [(key, query[key]) for key in ORDER if query.get(key)]
    return path + ("?" + urlencode(pairs, safe=":,/") if pairs else "")


def attributes_text(pairs: Iterable[tuple[str, str]]) -> str:
    """Return attributes as the value of `at`; a comma, a percent sign, and a colon of a key are escaped.

    >>> attributes_text([("tenant", "acme, inc"), ("replica", "web-1:7"), ("tier", "")])
    'tenant:acme%2C inc,replica:web-1:7,tier'
    """
    escaped = ((key.translate(_IN_KEY), value.translate(_IN_VALUE)) for key, value in pairs)
    return ",".join(f"{key}:{value}" if value else key for key, value in escaped)


_IN_VALUE = str.maketrans({"%": "%25", ",": "%2C"})
_IN_KEY = str.maketrans({"%": "%25", ",": "%2C", ":": "%3A"})


def service_path(service: str, tab: str = "") -> str:
    """Return the path of a service's page or tab: `tokens`, `capacity`, `replicas`, `traces` or `advice`."""
    return f"/s/{path_segment(service)}" + (f"/{tab}" if tab else "")


def trace_name(trace_id: str, span_id: str) -> str:
    """Return the unique name of a retained request; requests of one distributed trace share the trace id."""
    return f"{trace_id}-{span_id}"


def trace_path(name: str) -> str:
    """Return the path of the page of a retained request; *name* is its `trace_name` or a trace id."""
    return f"/traces/{path_segment(name)}"


def slo_path(name: str) -> str:
    """Return the path of an objective's page."""
    return f"/slo/{path_segment(name)}"


def incident_page(name: str) -> str:
    """Return the path of the page of the incident with the id *name*."""
    return f"/incidents/{path_segment(name)}"


def _zone(name: str | None) -> tzinfo:
    try:
        return ZoneInfo(name) if name else UTC
    except (ValueError, OSError, KeyError):  # an unknown name is a KeyError, an invalid one a ValueError
        return UTC


def _moment(text: str, now: datetime) -> datetime | None:
    """Parse `now`, `now-6h`, epoch milliseconds or an ISO time (UTC without a time zone), from 1970 to 2199."""
    try:
        at = _read_moment(text, now)
    except (ConfigError, ValueError, OverflowError, OSError):
        return None
    return at if _MOMENTS[0] <= at < _MOMENTS[1] else None


def _read_moment(text: str, now: datetime) -> datetime:
    if text == "now":
        return now
    if text.startswith("now-"):
        return now - parse_duration(text.removeprefix("now-"), "from")
    if text.isdigit():
        return datetime.fromtimestamp(int(text) / 1000, UTC)
    at = datetime.fromisoformat(text)
    return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)


def is_moment(text: str) -> bool:
    """Return whether *text* is a valid time for `from` and `to`.

    >>> is_moment("now-6h"), is_moment("2026-11-20T12:00Z"), is_moment("yesterday")
    (True, True, False)
    """
    return _moment(text, datetime.now(UTC)) is not None


def _stamp(at: datetime) -> str:
    return str(int(at.timestamp() * 1000))
