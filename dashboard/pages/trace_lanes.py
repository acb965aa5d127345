"""Who was busy when: the same request by where its work ran, so that what overlaps is seen side by side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dash import html
from dash.development.base_component import Component

from ...core.names import DEVICE, TIMING
from ...store import KeptTrace
from ..components import Node, attributes, card, legend, table
from ..design_tokens import hue
from ..format import duration, percent
from .trace_baseline import NS
from .trace_timeline import Scale, bar, in_time, note, span_name

_GPU, _CPU, _WIRE, _WAITING, _ELSEWHERE = "GPU", "CPU", "Network", "Waiting", "Other services"
_ORDER = (_WIRE, _WAITING, _CPU, _GPU, _ELSEWHERE)
_BY_STAGE = {"network": _WIRE, "queue": _WAITING, "dependency": _ELSEWHERE}
# Stages that run where the model does; the others of a request run on the CPU whatever its device is.
_ON_THE_DEVICE = {"forward", "prefill", "decode", "h2d", "d2h"}


def lanes(found: KeptTrace, tools: Node) -> Component:
    """Return the card with one lane for each place; *tools* stand at its right."""
    scale = Scale.of(found)
    held: dict[str, list[dict[str, Any]]] = {}
    for span in in_time(found):
        held.setdefault(lane_of(span, found.series.device), []).append(span)
    head: list[tuple[Node, str]] = [("Where", "w-name"), (scale.head(), "lane"), ("Busy", "r w-time")]
    shown = [each for each in _ORDER if each in held]
    rows = [_row(name, held[name], scale) for name in shown]
    body = table(head, rows, "Where the request was in time", css="wf")
    stages = legend({str(span["stage"]) for span in found.spans if span["stage"]})
    return card("Lanes", body, sub=_sub(held, scale), tools=tools, foot=stages, size="c8", flush=True)


def lane_of(span: Mapping[str, Any], device: str) -> str:
    """Return where *span* ran, of a request whose model is on *device*.

    >>> lane_of({"stage": "forward", "attributes": {}}, "cuda:0"), lane_of({"stage": "tokenize"}, "cuda:0")
    ('GPU', 'CPU')
    """
    stage = str(span["stage"])
    if stage in _BY_STAGE:
        return _BY_STAGE[stage]
    facts = dict(span.get("attributes") or {})
    if facts.get(TIMING) in {"reported", "averaged"}:
        return _ELSEWHERE
    where = str(facts.get(DEVICE) or (device if stage in _ON_THE_DEVICE else "")).lower()
    is_gpu = facts.get(TIMING) == "gpu" or where.startswith(("cuda", "gpu", "tensorrt", "rocm", "mps"))
    return _GPU if is_gpu else _CPU


def busy_ns(spans: list[dict[str, Any]]) -> int:
    """Return how long at least one of *spans* ran, in nanoseconds."""
    total, reached = 0, 0
    for span in sorted(spans, key=lambda each: int(each["start_ns"])):
        start = max(int(span["start_ns"]), reached)
        end = int(span["start_ns"]) + int(span["duration_ns"])
        total += max(end - start, 0)
        reached = max(reached, end)
    return total


def _row(name: str, spans: list[dict[str, Any]], scale: Scale) -> Component:
    bars = [bar(span, scale, className=f"st-{hue(str(span['stage']))}", title=_title(span)) for span in spans]
    return html.Tr(
        [
            html.Th(name, scope="row"),
            html.Td(html.Div(bars, className="in", style={"--tick": f"{scale.tick:.3f}%"}), className="lane"),
            html.Td(duration(busy_ns(spans) / NS), className="r"),
        ],
        **attributes({"data-lane": name}),
    )


def _title(span: Mapping[str, Any]) -> str:
    parts = (span_name(span), duration(float(span["duration_ns"]) / NS), note(span))
    return " · ".join(part for part in parts if part)


def _sub(held: Mapping[str, list[dict[str, Any]]], scale: Scale) -> str:
    if _GPU not in held:
        return "where the work ran"
    return f"the GPU was busy {percent(busy_ns(held[_GPU]) / NS / scale.whole)} of the time"
