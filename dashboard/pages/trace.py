"""One kept request as a waterfall, beside the median request of its service and drawn to the same scale."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from dash import html
from dash.development.base_component import Component

from ...collector.store import KeptTrace, Selection
from ...core.histogram import Histogram
from ...core.names import BATCH_SIZE, DEVICE, MODEL, STALL_PREFIX, STATUS_OK, TIMING
from ...core.stages import OVERHEAD, label
from ..components import Node, attributes, card, link, pill, stage_bar, swatch, table
from ..figures.parts import ticks
from ..format import axis_duration, duration, enough, percent, rank, split_duration, times
from ..tokens import hue
from ..view import service_path, trace_name, trace_path
from .measures import stages_at
from .page import Context, Page, nothing, panel
from .rows import traces_table

_NS = 1e9
# A W3C trace id or at least eight digits of it, or that and the root's span id: one request of several in the trace.
_ID = re.compile(r"[0-9a-f]{8,32}|[0-9a-f]{32}-[0-9a-f]{16}")
# The request is judged against what its service did around it.
_AROUND = timedelta(hours=6)
_KEPT = {
    "forced": "somebody asked for it",
    "error": "it failed",
    "slow": "it is among the slowest",
    "cold": "something was loaded or warmed up in it",
    "uniform": "it is one of the uniform share",
}
# From here on a rank is worth the colour of trouble.
_RARE = 0.99
_MIN_JUDGED = 20
# A note stands right of a bar that ends before it, left of one that begins behind its mirror, else on it. [percent]
_MIDDLE = 60


@dataclass(frozen=True, slots=True)
class Setting:
    """What the request is compared with.

    Args:
        latency: The latency of the requests around it.
        stages: Each stage's own time in them.
        median: The stages of the median request: stage to seconds.
    """

    latency: Histogram
    stages: Mapping[str, Histogram]
    median: dict[str, float]

    def usual(self, stage: str) -> float | None:
        """Return the median of the stage's own time; None when too few requests had it."""
        own = self.stages.get(stage)
        if own is None or own.count < _MIN_JUDGED:
            return None
        median = own.quantile(0.5)
        return median.value if median else None

    @property
    def median_seconds(self) -> float:
        """The latency of the median request; zero when there is none."""
        return sum(self.median.values())


@dataclass(frozen=True, slots=True)
class Measured:
    """What stands beside a lane.

    Args:
        seconds: How long it took. [seconds]
        rank: The share of requests whose stage took no longer; None when there are too few to say.
        main: Whether the request is dominated by this stage.
    """

    seconds: float
    rank: float | None
    main: bool = False


def render(context: Context, trace_id: str) -> Page:
    """Return the page of one kept request."""
    view, source = context.view, context.source
    found = source.ask(source.read.trace, trace_id) if _is_id(trace_id) else None
    trail: list[tuple[str, str | None]] = [("Traces", view.link("/traces"))]
    if found is None:
        return Page("Trace · Stagelens", [*trail, (trace_id[:12], None)], [_not_kept(context, trace_id)], "/traces")
    service = found.series.service
    trail += [(service, view.link("/traces", svc=service)), (found.trace_id[:8], None)]
    setting = _setting(context, found)
    near = _neighbours(context, found)
    body: list[Node] = [
        _head(context, found, setting, near),
        panel("Verdict", lambda: _verdict(found, setting)),
        html.Div(
            [
                panel("Timeline", lambda: _timeline(found, setting), "c8"),
                panel("Attributes", lambda: _attributes(context, found), "c4"),
            ],
            className="grid",
        ),
        panel("More like this", lambda: _more(context, found)),
    ]
    return Page(f"Trace {found.trace_id[:8]} · Stagelens", trail, body, "/traces")


def _is_id(text: str) -> bool:
    return _ID.fullmatch(text.lower()) is not None


def _not_kept(context: Context, trace_id: str) -> Component:
    if not _is_id(trace_id):
        text = f"{trace_id[:40]!r} is no trace id: it has 32 hexadecimal digits, and its first 8 are enough."
    else:
        text = (
            "Every request is counted, but only the slowest, errors and a uniform share are kept, and only for a while."
        )
    kept = link("Kept traces", href=context.view.link("/traces"), className="btn pri")
    return nothing("This trace was not kept", text, actions=[kept])


def _around(found: KeptTrace) -> Selection:
    at = datetime.fromtimestamp(found.started_ns / _NS, UTC)
    return Selection(at - _AROUND, at + _AROUND, service=found.series.service)


def _setting(context: Context, found: KeptTrace) -> Setting:
    source, around = context.source, _around(found)
    frame = source.ask(source.read.breakdown, around, (0.5,))
    median = stages_at(frame, 0) if len(frame) and enough(int(frame.attrs.get("requests", 0)), 0.5) else {}
    return Setting(source.ask(source.read.latency, around), source.ask(source.read.stage_latency, around), median)


def _neighbours(context: Context, found: KeptTrace) -> tuple[str | None, str | None]:
    """Return the kept requests before and after this one in the order of the list, slowest first."""
    source = context.source
    frame = source.ask(source.read.exemplars, _around(found), limit=100)
    listed = [
        trace_name(str(trace), str(span)) for trace, span in zip(frame["trace_id"], frame["span_id"], strict=True)
    ]
    own = trace_name(found.trace_id, found.span_id)
    if own not in listed:
        return None, None
    at = listed.index(own)
    return (listed[at - 1] if at else None), (listed[at + 1] if at + 1 < len(listed) else None)


def _rank_of(histogram: Histogram | None, seconds: float) -> float | None:
    """Return which share of the requests took no longer; None when there are too few to say."""
    if histogram is None or histogram.count < _MIN_JUDGED:
        return None
    share = histogram.fraction_below(seconds)
    return share.value if share else None


def _rank_badge(value: float | None) -> Component | None:
    if value is None:
        return None
    return pill(rank(value), "bad" if value >= _RARE else "")


def _head(context: Context, found: KeptTrace, setting: Setting, near: tuple[str | None, str | None]) -> Component:
    view, series = context.view, found.series
    at = datetime.fromtimestamp(found.started_ns / _NS, UTC).astimezone(view.zone)
    title: list[Node] = [
        html.Span(["Trace ", html.Span(found.trace_id[:8], className="mono")]),
        _rank_badge(_rank_of(setting.latency, found.duration_ns / _NS)),
        link(pill(series.service, "out"), href=view.link(service_path(series.service))),
        pill(series.version, "out") if series.version else None,
        pill("error", "bad") if series.status != STATUS_OK else None,
    ]
    why = _KEPT.get(found.because, found.because)
    sub = f"{at:%-d %b %Y %H:%M:%S} {at.tzname()} · kept because {why}"
    steps: list[Node] = [html.Span(className="grow")]
    for name, text, key, marker in (
        (near[0], "◂ Slower", "K", "data-previous"),
        (near[1], "Faster ▸", "J", "data-next"),
    ):
        if name:
            href = view.link(trace_path(name))
            steps.append(
                html.Span(
                    link([text, html.Kbd(key, className="kbd hide")], href=href, className="btn"),
                    **attributes({marker: ""}),
                )
            )
    return html.Div([html.Div([html.H1(title), html.P(sub, className="sub")]), *steps], className="phead")


def _verdict(found: KeptTrace, setting: Setting) -> Component:
    stages = {stage: value / _NS for stage, value in found.stages_ns.items()}
    seconds = found.duration_ns / _NS
    number, unit = split_duration(seconds)
    median = setting.median_seconds
    against: list[Node] = []
    if median:
        slower = seconds > median
        against = [
            html.Span(
                f" · {times(seconds / median)} the median",
                className="bad" if slower and seconds > 2 * median else "muted",
            )
        ]
    longest = max(seconds, median) or 1.0
    bars: list[Node] = ["This request", stage_bar(stages, tall=True, scale=seconds / longest)]
    if median:
        bars += [f"Median request, {duration(median)}", stage_bar(setting.median, scale=median / longest)]
    said = [
        html.Span([number, html.Small(unit)], className="total"),
        *against,
        html.Div(_causes(stages, setting), className="muted x"),
    ]
    return html.Div([html.Div(said, className="say"), html.Div(bars, className="scale")], className="verdict")


def _causes(stages: Mapping[str, float], setting: Setting) -> list[Any]:
    """Name the stages that took most of what this request took more than the median one."""
    total = sum(stages.values()) or 1.0
    excess = sorted(stages, key=lambda stage: -(stages[stage] - setting.median.get(stage, 0.0)))
    said: list[Any] = []
    for stage in excess[:2]:
        share = stages[stage] / total
        if share < 0.1:  # noqa: PLR2004 - less is no cause
            continue
        usual = setting.usual(stage)
        said += ["; " if said else "", html.B(label(stage)), f" took {percent(share)}"]
        if usual and stages[stage] > 1.5 * usual:
            said.append(f", {duration(stages[stage])} instead of the usual {duration(usual)}")
    return [*said, "."] if said else ["No stage stands out."]


def _timeline(found: KeptTrace, setting: Setting) -> Component:
    whole = max(found.duration_ns / _NS, 1e-9)
    marks = ticks(0, whole, 5)["tickvals"]
    step = marks[1] if len(marks) > 1 else whole
    axis = [
        html.Span(axis_duration(each), style={"left": f"{each / whole * 100:.2f}%"})
        for each in marks
        if each < whole * 0.97
    ]
    head: list[tuple[Node, str]] = [
        ("Stage", "w-name"),
        (html.Div(axis, className="ax", title="Time since the request came in"), "lane"),
        ("Time", "r w-time"),
        ("Rank", "r w-rank hide"),
    ]
    rows = [
        _lane(span, whole, step, found, setting) for span in sorted(found.spans, key=lambda each: int(each["start_ns"]))
    ]
    rows += _overhead_row(found, setting, step / whole * 100)
    body = table(head, rows, "Stages of the request in time", css="wf")
    foot = _foot(found)
    return card("Timeline", body, sub="dashed = median for this stage", foot=foot, size="c8", flush=True)


def _lane(span: Mapping[str, Any], whole: float, step: float, found: KeptTrace, setting: Setting) -> Component:
    stage = str(span["stage"])
    start, seconds = int(span["start_ns"]) / _NS, int(span["duration_ns"]) / _NS
    left, width = start / whole * 100, seconds / whole * 100
    parts: list[Component] = []
    usual = setting.usual(stage)
    if usual:
        parts.append(
            html.I(
                className="gh",
                style={"left": f"{left:.2f}%", "width": f"{min(usual / whole * 100, 100 - left):.2f}%"},
                title=f"median {duration(usual)}",
            )
        )
    parts.insert(0, html.I(style={"left": f"{left:.2f}%", "width": f"{width:.2f}%"}))
    said = note(span)
    if said:
        parts.append(_beside(said, left, width))
    place = _rank_of(setting.stages.get(stage), found.stages_ns.get(stage, 0) / _NS)
    name = str(span["name"])
    shown = " · ".join(dict.fromkeys(part for part in (label(stage), name if name != stage else "") if part))
    return _row(stage, shown, parts, step / whole * 100, Measured(seconds, place, main=stage == found.dominant))


def _beside(said: str, left: float, width: float) -> Component:
    """Return a note behind its bar, or before it, or on a bar that leaves room on neither side; places in percent."""
    if left + width < _MIDDLE:
        return html.Span(said, className="lb", style={"left": f"calc({left + width:.2f}% + 7px)"})
    if left > 100 - _MIDDLE:
        return html.Span(said, className="lb", style={"right": f"calc({100 - left:.2f}% + 7px)"})
    return html.Span(said, className="lb on", style={"left": f"calc({left:.2f}% + 7px)"})


def _overhead_row(found: KeptTrace, setting: Setting, tick: float) -> list[Component]:
    """The time nobody claimed has no interval of its own."""
    seconds = found.stages_ns.get(OVERHEAD, 0) / _NS
    if not seconds:
        return []
    place = _rank_of(setting.stages.get(OVERHEAD), seconds)
    note = html.Span("between the stages", className="lb", style={"left": "6px"})
    return [
        _row(OVERHEAD, label(OVERHEAD), [note], tick, Measured(seconds, place)),
    ]


def _row(stage: str, shown: str, parts: Sequence[Component], tick: float, measured: Measured) -> Component:
    rare = measured.rank is not None and measured.rank >= _RARE
    return html.Tr(
        [
            html.Th(html.Span([swatch(stage), html.Span(shown)], className="nm"), scope="row", title=shown),
            html.Td(
                html.Div(list(parts), className=f"in st-{hue(stage)}", style={"--tick": f"{tick:.3f}%"}),
                className="lane",
            ),
            html.Td(duration(measured.seconds), className="r b" if measured.main or rare else "r"),
            html.Td(html.Span(rank(measured.rank), className="bad b" if rare else "muted"), className="r hide"),
        ],
        className="on" if measured.main else "",
        **attributes({"data-stage": stage}),
    )


def note(span: Mapping[str, Any]) -> str:
    """Return what is written beside a span: the pauses it met, its model, batch and device, and how it was timed."""
    attributes = dict(span.get("attributes") or {})
    stalls = [
        f"{key.removeprefix(STALL_PREFIX).upper()} pause {duration(value / _NS)}"
        for key, value in attributes.items()
        if key.startswith(STALL_PREFIX) and isinstance(value, int)
    ]
    timed = [f"timed by {attributes[TIMING]}"] if TIMING in attributes else []
    facts = [
        str(value) if key == MODEL else f"{key.split('.')[1]} {value}"
        for key, value in attributes.items()
        if key in {MODEL, BATCH_SIZE, DEVICE}
    ]
    return " · ".join([*stalls, *facts, *timed])


def _foot(found: KeptTrace) -> Node:
    total = sum(int(each["duration_ns"]) for each in found.spans if each["stage"])
    if total <= found.duration_ns:
        return None
    return "Stages overlap: each bar is as long as it ran, the shares above count every moment once."


def _attributes(context: Context, found: KeptTrace) -> Component:
    series = found.series
    at = datetime.fromtimestamp(found.started_ns / _NS, UTC).astimezone(context.view.zone)
    pairs: dict[str, object] = {
        "Trace": found.trace_id,
        "Service": series.service,
        "Version": series.version,
        "Environment": series.environment,
        "Model": " ".join(part for part in (series.model, series.model_version) if part),
        "Route": series.route,
        "Device": series.device,
        "Status": series.status,
        "Started": f"{at:%H:%M:%S}.{found.started_ns // 1_000_000 % 1000:03d}",
    }
    known = {str(value) for value in pairs.values()}
    pairs |= {
        key: value
        for key, value in found.attributes.items()
        if str(value) not in known and not key.startswith("stagelens.")
    }
    items: list[Component] = []
    for key, value in pairs.items():
        if str(value):
            items += [html.Dt(key), html.Dd(str(value), title=str(value))]
    return card("Attributes", html.Dl(items, className="kv"), size="c4")


def _more(context: Context, found: KeptTrace) -> Component:
    source = context.source
    frame = source.ask(source.read.exemplars, _around(found), limit=7, dominant=found.dominant)
    frame = frame[(frame["trace_id"] != found.trace_id) | (frame["span_id"] != found.span_id)].head(6)
    more = link("All traces →", href=context.view.link("/traces", svc=found.series.service), className="link")
    if not len(frame):
        return card("More like this", html.P("No other kept request is dominated by this stage.", className="muted"))
    sub = f"mostly {label(found.dominant)} too"
    return card(
        "More like this",
        traces_table(frame, context.view, "Requests with the same cause"),
        sub=sub,
        tools=more,
        flush=True,
    )
