"""Page type, the context from which pages are rendered, empty states, and the table of retained traces.

A page gets a `Context` (view and data source) and returns a `Page` (title, trail, body). Without data the page shows how to
send the first request, or a link to the last data.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from importlib.metadata import PackageNotFoundError, distribution
from types import MappingProxyType
from typing import Any, TypeVar

import pandas as pd
from dash import html
from dash.development.base_component import Component

from ...alerts.evaluation.slo_status import SloStatus
from ...alerts.reader import Incident
from ...core.addresses import server_url
from ...core.histogram import has_enough_samples
from ...core.names import STATUS_ERROR
from ...store import Selection
from ..figures.time_axis import TimeAxis, step_for
from ..source import Source
from ..ui import components
from ..ui.format import day, duration, rank, span
from ..view import SCOPE, View, trace_name, trace_path

_HEAD: tuple[tuple[components.Node, str], ...] = (
    ("Time", "hide"),
    ("Trace", ""),
    ("Latency", "r"),
    ("Rank", "r hide"),
    ("Stages", ""),
    ("Dominated by", "hide"),
    ("Status", "r hide"),
)
T = TypeVar("T")
# Maximum number of event markers in a chart.
_MAX_MARKERS = 4
_BUCKET = timedelta(seconds=10)
# Agents send every 10 s, and retry after a failure.
_SILENT = timedelta(minutes=2)
# Maximum length of an event name on charts; the events page shows the full name.
_MAX_NAME = 24
_EXAMPLE = 'pip install -e ".[server]" fastapi uvicorn magika'
_RUN = "stagelens run -- uvicorn serve:app --app-dir examples/start/onnxruntime"
_BY_HAND = """import stagelens

with stagelens.request("classify"):
    with stagelens.stage("preprocess"):
        batch = resize(image)
    with stagelens.stage("forward"):
        scores = model(batch)"""
_DEMO = "make demo"
# Default OTLP port of agents.
_PORT = 4318
NO_REQUEST_YET = ("No request so far", "None has ended and was counted. ")


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(key): value for key, value in row.items()} for row in frame.to_dict("records")]


def traces_table(
    frame: pd.DataFrame,
    view: View,
    name: str,
    *,
    with_service: bool = False,
    columns: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> Component:
    more = {**({"Service": list(map(str, frame["service"]))} if with_service else {}), **columns}
    ranked = are_ranked(frame)
    rows = [
        _row(record, view, ranked=ranked, more=[column[index] for column in more.values()])
        for index, record in enumerate(records(frame))
    ]
    return components.table((*_HEAD[:2], *((title, "hide") for title in more), *_HEAD[2:]), rows, name)


def are_ranked(frame: pd.DataFrame) -> bool:
    return has_enough_samples(int(frame.attrs.get("requests", 0)), 0.5)


def stages_of(record: Mapping[str, Any]) -> dict[str, float]:
    return {str(stage): float(seconds) for stage, seconds in dict(record["stages"]).items()}


def _row(record: Mapping[str, Any], view: View, *, ranked: bool, more: Sequence[str]) -> Component:
    trace_id = str(record["trace_id"])
    href = view.link(trace_path(trace_name(trace_id, str(record["span_id"]))))
    at = pd.Timestamp(record["at"]).tz_convert(view.zone)
    stages = stages_of(record)
    cells = [
        html.Td(f"{at:%H:%M:%S}", className="muted hide", title=f"{at:%-d %b %Y %H:%M:%S}"),
        html.Td(components.link(trace_id[:8], href=href, className="mono")),
        *(html.Td(html.Span(text, className="cut", title=text), className="hide") for text in more),
        html.Td(duration(float(record["duration_seconds"])), className="r b"),
        html.Td(rank(float(record["rank"]) if ranked else None), className="r muted hide"),
        html.Td(components.stage_bar(stages), className="barcell"),
        html.Td(components.dominating(stages), className="hide"),
        html.Td(status_pill(str(record["status"])), className="r hide"),
    ]
    return html.Tr(cells, **components.attributes({"data-href": href}))


def status_pill(status: str) -> Component:
    return components.pill(status, "bad" if status == STATUS_ERROR else "")


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Page:
    title: str
    trail: list[tuple[str, str | None]]
    body: list[components.Node]
    place: str = "/"
    status: int = 200


@dataclass(frozen=True)
class Context:
    view: View
    source: Source
    service: str | None = None
    _made: dict[object, Any] = field(default_factory=dict[object, Any], init=False, repr=False, compare=False)

    def once(self, make: Callable[[Context], T]) -> T:
        if make not in self._made:
            self._made[make] = make(self)
        return self._made[make]

    @cached_property
    def selection(self) -> Selection:
        view = self.view
        part = {SCOPE[key]: value for key, value in view.scope.items()} if self.service else {}
        return Selection(view.start, view.end, service=self.service, environment=view.text("env"), **part)

    def of(self, service: str) -> Context:
        """Return this context for the complete *service*, without the version, model and route of another service."""
        return Context(self.view.of_whole_services(), self.source, service)

    @cached_property
    def previous(self) -> Selection | None:
        """Selection of the compared window: the previous one, or a day or a week before; None if `vs` is off."""
        back = self.view.compared_back
        if back is None:
            return None
        start, end = self.source.whole_window(self.view.start - back, self.view.end - back)
        return replace(self.selection, start=start, end=end)

    @property
    def previous_seconds(self) -> float:
        """Length of the compared window within the history, so that rates exclude the time before the first data."""
        if self.previous is None:
            return 0.0
        start = max(self.previous.start, self.first_data or self.previous.start)
        return max((self.previous.end - start).total_seconds(), 0.0)

    @cached_property
    def versions(self) -> pd.DataFrame:
        view = self.view
        return self.source.versions(self.service or "", view.text("env"), view.start, view.end)

    @cached_property
    def first_data(self) -> datetime | None:
        if self.service is None:
            return self.source.state().oldest
        return None if self.versions.empty else _python(self.versions["first_seen"].min())

    @cached_property
    def axis(self) -> TimeAxis:
        """Time axis of the page: the window, limited to the history."""
        view = self.view
        start = max(view.start, self.first_data) if self.first_data else view.start
        if start >= view.end:
            start = view.start
        return TimeAxis(start, view.end, step_for(view.end - start), view.zone)

    def axis_of(self, frame: pd.DataFrame) -> TimeAxis:
        """Return the time axis with the step of *frame*, which the store widens for data without finer buckets."""
        seconds = frame.attrs.get("step_seconds")
        return replace(self.axis, step=timedelta(seconds=float(seconds))) if seconds else self.axis

    def rates(self, frame: pd.DataFrame) -> list[float]:
        """Return the request rate of every step of *frame* [requests/s].

        The newest step is omitted if the window ends now, because its data is incomplete and every series would end with a drop.
        """
        if not len(frame):
            return []
        axis = self.axis_of(frame)
        rates = frame["n"].to_numpy(dtype=float) / axis.covered_seconds(frame["at"])
        return [float(rate) for rate in (rates[:-1] if self.unfinished(frame["at"], axis) else rates)]

    def unfinished(self, starts: Iterable[object], axis: TimeAxis) -> bool:
        """Return whether the newest of the steps *starts* is incomplete because agents are still sending its data."""
        newest = max((_python(start) for start in starts), default=axis.start)
        return self.view.live and axis.begin(newest) + axis.step >= axis.end

    @property
    def seconds(self) -> float:
        """Length of the counted time of the page, in seconds."""
        first, last = self.axis.counted
        return max((last - first).total_seconds(), 1.0)

    @property
    def silence(self) -> timedelta | None:
        """Time since the last data of the service, if the window ends now; None while the service sends data."""
        if self.service is None or self.versions.empty or not self.view.live:
            return None
        silent = self.source.now() - _python(self.versions["last_seen"].max()) - _BUCKET
        return silent if silent >= _SILENT else None

    @property
    def young(self) -> str:
        """Note that the data starts later than the window; "" otherwise."""
        if self.axis.start <= self.view.start:
            return ""
        return f"history starts {self.axis.start.astimezone(self.view.zone):%H:%M:%S}, {span(self.axis.end - self.axis.start)} of data"

    @cached_property
    def releases(self) -> dict[datetime, str]:
        """Versions first seen in the shown time, by time; the first version of a service is not a release."""
        rows = self.versions.iloc[1:] if len(self.versions) else self.versions
        seen = [(_python(at), str(name)) for at, name in zip(rows["first_seen"], rows["version"], strict=True)]
        shown = [(at, name) for at, name in seen if self.axis.start < at < self.axis.end]
        return dict(shown[-_MAX_MARKERS:])

    @cached_property
    def reported_events(self) -> pd.DataFrame:
        """Events reported by people and pipelines in the shown time, for the service and for all, newest first."""
        read = self.source.read
        return self.source.cached(read.events, self.axis.start, self.axis.end, service=self.service)

    @cached_property
    def events(self) -> dict[datetime, str]:
        """Short names of reported events by time: deployments first, then the newest; without advice marks."""
        reported = self.reported_events[self.reported_events["kind"] != "advice"]
        rows = reported.iloc[(reported["kind"] != "deploy").argsort(kind="stable")].head(_MAX_MARKERS)
        names = [_short(str(key) or str(text)) for key, text in zip(rows["key"], rows["text"], strict=True)]
        return dict(zip(map(_python, rows["at"]), names, strict=True))

    @property
    def at(self) -> datetime:
        """Time to which the page refers: the end of a past window, else the current time."""
        return self.view.past_end or self.source.now()

    @cached_property
    def slos(self) -> list[SloStatus]:
        return self.source.slos(self.view.past_end)

    @cached_property
    def open_incidents(self) -> list[Incident]:
        at = self.view.past_end
        if at is None:
            return [incident for incident in self.source.incidents() if incident.state == "open"]
        return [incident for incident in self.source.incidents_between(at, at + _BUCKET) if incident.opened_at <= at]

    @cached_property
    def slo(self) -> SloStatus | None:
        """Objective that best matches the shown requests; its scope may be wider or different."""
        return self.source.slo_of(self.selection, self.view.past_end) if self.service else None

    @cached_property
    def covering_slo(self) -> SloStatus | None:
        """Latency objective that covers every shown request; None without one."""
        return self.source.covering_slo(self.selection, self.view.past_end) if self.service else None

    @property
    def threshold_seconds(self) -> float | None:
        """Latency threshold that applies to every shown request [seconds]; None without a covering objective."""
        return self.covering_slo.slo.threshold_seconds if self.covering_slo else None


def panel(
    title: str, build: Callable[[], Component | None], size: str = "c12", needs: str = ""
) -> components.LazyPanel:
    """Return the later result of *build*, or an error card, so that one failing card does not break the page.

    A change of a key of the address in *needs* updates only the panels that name it, in place.
    """

    def build_or_explain() -> Component | None:
        try:
            return build()
        except Exception as error:  # noqa: BLE001 - an error of one card must not affect the others
            _log.exception("the card %r could not be rendered", title)
            return components.card(title, _failed(error), size=size)

    if not needs:
        return components.LazyPanel(build_or_explain)
    named = components.attributes({"data-part": title, "data-needs": needs})
    return components.LazyPanel(lambda: html.Div(build_or_explain(), className="part", **named), title)


def _failed(error: Exception) -> Component:
    retry = html.Button("Try again", className="btn", type="button", **components.attributes({"data-do": "reload"}))
    return html.Div(
        [
            html.H3("This card could not be rendered"),
            html.P(f"{type(error).__name__}: the rest of the page is not affected. See the log of the dashboard."),
            html.Div(retry, className="acts"),
        ],
        className="empty",
    )


def empty_page_card(title: str, *text: components.Node, actions: list[Component] | None = None) -> Component:
    return components.card(None, components.empty(title, *text, actions=actions or []))


def _short(name: str) -> str:
    return name if len(name) <= _MAX_NAME else f"{name[: _MAX_NAME - 1]}…"


def _python(at: object) -> datetime:
    return pd.Timestamp(at).to_pydatetime()  # pyright: ignore[reportArgumentType] - pandas types its timestamps as object


def no_data(context: Context) -> list[components.Node]:
    view, environment = context.view, context.view.text("env")
    services = context.source.all_services(environment)
    if not len(services) and not environment:
        return [first_run(context.source)]
    if not len(services):
        everywhere = components.link("All environments", href=view.here(env=None), className="btn pri")
        return [empty_page_card(f"No environment called {environment}", "It has no requests.", actions=[everywhere])]
    if not services["requests"].any():
        return [empty_page_card(*NO_REQUEST_YET)]
    return [no_request(context, services["last_seen"].max())]


def clock_or_date(at: datetime, view: View) -> str:
    local = at.astimezone(view.zone)
    return f"{local:%H:%M}" if local.date() == view.now.astimezone(view.zone).date() else day(local)


def no_request(
    context: Context, last_seen: pd.Timestamp, part: str = "", *more: components.Node, is_stopped: bool = False
) -> Component:
    """Return the card of a window without requests, with links to the last data.

    While the newest requests are in the bucket that still runs, it says when they are counted. *last_seen* is the start of the
    bucket of the last request, *part* the shown part of the service.
    """
    view, last = context.view, last_seen.to_pydatetime() + _BUCKET
    at, age = last.astimezone(view.zone), context.source.now() - last
    if view.live and last > view.end:
        return _waiting(f"Requests are arriving. This page counts them from {at:%H:%M:%S} on.")
    text = f"The last request arrived {span(age)} ago, at {at:%-d %b %H:%M:%S}."
    text = text if age > timedelta() else "All data is newer than this window."
    text = f"None of {part}. Of all of the service: {text[0].lower()}{text[1:]}" if part else text
    length = min(view.end - view.start, timedelta(days=1))
    actions = [
        components.link("Go to last data", href=view.with_window(last - length, last), className="btn pri"),
        components.link("Last 24 h", href=view.here(from_="now-24h", to=None), className="btn"),
    ]
    title = f"No data since {clock_or_date(last, view)}" if is_stopped else "No request in this window"
    return empty_page_card(title, text, *more, actions=actions)


def _waiting(text: str) -> Component:
    return html.Div([html.Span(className="pulse"), text], className="wait", role="status")


def first_run(source: Source) -> Component:
    endpoint, note = _collector(source)
    return html.Div(
        [
            html.H1("No service yet"),
            html.P("Start a service with Stagelens and send a request to it. Its code stays unchanged.", className="x"),
            html.H2("In your clone of Stagelens, with the environment of your service active"),
            components.code_block(f"pip install {installable()}"),
            html.P(
                components.with_code(
                    "Then put `stagelens run --` before the command of your service. An example in the clone:"
                )
            ),
            components.code_block(f"{_EXAMPLE}\nOTEL_SERVICE_NAME=texts {endpoint}{_RUN}"),
            html.H2("Or name the stages yourself"),
            components.code_block(_BY_HAND),
            html.H2("Or try it with a real model, in the clone"),
            components.code_block(_DEMO),
            html.P(components.with_code(note), className="x"),
            _waiting("Waiting for the first request. Requests appear here within 20 s."),
        ],
        className="first",
    )


def _collector(source: Source) -> tuple[str, str]:
    report = max(source.read.collectors(), key=lambda report: report.seen, default=None)
    if report is None:
        return "", "No collector has reported to this store yet. Start one with `stagelens up`."
    host, _, port = report.name.rpartition(":")
    where = server_url("127.0.0.1" if host == socket.gethostname() else host, port)
    seen = f"The collector {report.name} reported {span(max(source.now() - datetime.fromtimestamp(report.seen, UTC), timedelta()))} ago"
    if where == f"http://127.0.0.1:{_PORT}":
        return "", f"{seen}. Agents send to {where} by default."
    return f"OTEL_EXPORTER_OTLP_ENDPOINT={where} ", f"{seen}."


def installable(extra: str = "") -> str:
    """Return the argument of `pip install` in a clone of Stagelens; the name if this server came from a package index (PEP 610)."""
    try:
        installed = distribution("stagelens")
    except PackageNotFoundError:
        installed = None
    name = (
        "stagelens"
        if installed and installed.read_text("WHEEL") and not installed.read_text("direct_url.json")
        else "."
    )
    return f"'{name}[{extra}]'" if extra else name
