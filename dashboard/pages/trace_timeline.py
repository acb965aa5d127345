"""The stages of one kept request in time: a lane each, with what is usual for the stage as a dashed outline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dash import html
from dash.development.base_component import Component

from ...core.names import BATCH_SIZE, DEVICE, MODEL, PART, TIMING
from ...core.stages import OVERHEAD, label
from ...store import KeptTrace
from ..components import Node, attributes, card, swatch, table
from ..design_tokens import hue
from ..figures.parts import ticks
from ..format import axis_duration, duration, rank
from .stalled import span_stalls
from .trace_baseline import NS, TraceBaseline, rank_of

# From here on a rank is worth the colour of trouble.
RARE = 0.99
# A note stands right of a bar that ends before it, left of one that begins behind its mirror, else on it. [percent]
_MIDDLE = 60


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


@dataclass(frozen=True, slots=True)
class Scale:
    """The time axis that all lanes share.

    Args:
        whole: The wall time of the request, above zero. [seconds]
    """

    whole: float

    @classmethod
    def of(cls, found: KeptTrace) -> Scale:
        """Return the axis of *found*."""
        return cls(max(found.duration_ns / NS, 1e-9))

    @property
    def marks(self) -> list[float]:
        """Round times from the start, in seconds."""
        return list(ticks(0, self.whole, 5)["tickvals"])

    @property
    def tick(self) -> float:
        """The distance of two marks, in percent of the width."""
        marks = self.marks
        return (marks[1] if len(marks) > 1 else self.whole) / self.whole * 100

    def place(self, span: Mapping[str, Any]) -> tuple[float, float]:
        """Return where *span* begins and how wide it is, in percent; inside the request, whatever a wrong clock said."""
        start, end = (float(span["start_ns"]), float(span["start_ns"]) + float(span["duration_ns"]))
        left, right = (min(max(each / NS / self.whole * 100, 0.0), 100.0) for each in (start, end))
        return left, right - left

    def head(self) -> Component:
        """Return the axis itself."""
        shown = [each for each in self.marks if each < self.whole * 0.97]
        return html.Div(
            [html.Span(axis_duration(each), style={"left": f"{each / self.whole * 100:.2f}%"}) for each in shown],
            className="ax",
            title="Time since the request came in; drag to look closer, double-click for the whole",
        )


def in_time(found: KeptTrace) -> list[dict[str, Any]]:
    """Return the spans of *found* by their start."""
    return sorted(found.spans, key=lambda each: int(each["start_ns"]))


def bar(span: Mapping[str, Any], scale: Scale, **more: Any) -> Component:
    """Return one span as a bar on a lane."""
    left, width = scale.place(span)
    return html.I(style={"left": f"{left:.2f}%", "width": f"{width:.2f}%"}, **more)


def timeline(found: KeptTrace, setting: TraceBaseline, tools: Node) -> Component:
    """Return the card with a lane for each recorded interval; *tools* stand at its right."""
    scale = Scale.of(found)
    head: list[tuple[Node, str]] = [
        ("Stage", "w-name"),
        (scale.head(), "lane"),
        ("Time", "r w-time"),
        ("Rank", "r w-rank hide"),
    ]
    rows = [_lane(span, scale, found, setting) for span in in_time(found)]
    rows += _overhead_row(found, setting, scale)
    body = table(head, rows, "Stages of the request in time", css="wf")
    return card(
        "Timeline", body, sub="dashed = median for this stage", tools=tools, foot=_foot(found), size="c8", flush=True
    )


def _lane(span: Mapping[str, Any], scale: Scale, found: KeptTrace, setting: TraceBaseline) -> Component:
    stage = str(span["stage"])
    left, width = scale.place(span)
    parts: list[Component] = [bar(span, scale)]
    usual = setting.usual(stage)
    if usual:
        ghost = {"left": f"{left:.2f}%", "width": f"{min(usual / scale.whole * 100, 100 - left):.2f}%"}
        parts.append(html.I(className="gh", style=ghost, title=f"median {duration(usual)}"))
    said = note(span)
    if said:
        parts.append(_beside(said, left, width))
    place = rank_of(setting.stages.get(stage), found.stages_ns.get(stage, 0) / NS)
    measured = Measured(float(span["duration_ns"]) / NS, place, main=stage == found.dominant)
    return _row(stage, span_name(span), parts, scale.tick, measured)


def span_name(span: Mapping[str, Any]) -> str:
    """Return what a span is called: its stage, and its own name where that says more."""
    stage, name = str(span["stage"]), str(span["name"])
    return " · ".join(dict.fromkeys(part for part in (label(stage), name if name != stage else "") if part))


def _beside(said: str, left: float, width: float) -> Component:
    """Return a note behind its bar, or before it, or on a bar that leaves room on neither side; places in percent."""
    if left + width < _MIDDLE:
        return html.Span(said, className="lb", style={"left": f"calc({left + width:.2f}% + 7px)"})
    if left > 100 - _MIDDLE:
        return html.Span(said, className="lb", style={"right": f"calc({100 - left:.2f}% + 7px)"})
    return html.Span(said, className="lb on", style={"left": f"calc({left:.2f}% + 7px)"})


def _overhead_row(found: KeptTrace, setting: TraceBaseline, scale: Scale) -> list[Component]:
    """The time nobody claimed has no interval of its own."""
    seconds = found.stages_ns.get(OVERHEAD, 0) / NS
    if not seconds:
        return []
    place = rank_of(setting.stages.get(OVERHEAD), seconds)
    between = html.Span("between the stages", className="lb", style={"left": "6px"})
    return [
        _row(OVERHEAD, label(OVERHEAD), [between], scale.tick, Measured(seconds, place)),
    ]


def _row(stage: str, shown: str, parts: Sequence[Component], tick: float, measured: Measured) -> Component:
    rare = measured.rank is not None and measured.rank >= RARE
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


_TIMED = {"reported": "as its server says", "averaged": "as its server says, on average", "launch": "its launch only"}
_PARTS = {"body": "reading the answer", "rest": "what its server leaves of the call"}


def note(span: Mapping[str, Any]) -> str:
    """Return what is written beside a span: what held it up, which part it is, its model, batch and device, and how it was timed."""
    attributes = dict(span.get("attributes") or {})
    timed = [_TIMED.get(str(attributes[TIMING]), f"timed by {attributes[TIMING]}")] if TIMING in attributes else []
    facts = [
        str(value) if key == MODEL else f"{key.split('.')[1]} {value}"
        for key, value in attributes.items()
        if key in {MODEL, BATCH_SIZE, DEVICE}
    ]
    part = filter(None, [_PARTS.get(str(attributes.get(PART)))])
    return " · ".join([*span_stalls(attributes), *part, *facts, *timed])


def _foot(found: KeptTrace) -> Node:
    total = sum(int(each["duration_ns"]) for each in found.spans if each["stage"])
    if total <= found.duration_ns:
        return None
    return "Stages overlap: each bar is as long as it ran, the shares above count every moment once."
