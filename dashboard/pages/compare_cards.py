"""Cards of the comparison page: stage differences at one percentile, and other signals that changed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from dash import html
from dash.development.base_component import Component

from ...alerts.evaluation.evidence import dependency_sentence
from ...analysis.comparison import QuantileComparison
from ...core.histogram import has_enough_samples, samples_needed
from ...core.names import TOKENS_IN, TOKENS_OUT
from ...core.stages import label
from ...store import Indicator, Tally
from ..ui.components import Node, attributes, card, empty, link_tabs, pill, ratio_of, swatch, table
from ..ui.design_tokens import hue
from ..ui.format import THIN, count, duration, percent, percentile, signed_change, span, whole
from .comparison import Pair, PairComparison, grown_at
from .comparison_text import TRAFFIC_NOISE, VERDICT_WORDS, median_value, request_mix, token_histograms
from .page import Context, records

# Smallest relevant difference in failure rate [ratio], and its required significance [standard errors].
_FEW_ERRORS, _STANDARD_ERRORS = 0.001, 3.0
_HEAD = (("Signal", ""), ("A", "r"), ("B", "r"), ("Change", "r"))
_DIMENSIONS = {"route": "Route", "model": "Model", "device": "Device", "batch": "Batch of"}
_LITTLE = "Mean number of concurrent requests: request rate times mean latency (Little's law)."
_MIXED = "Value whose share of requests differs most."
# Quantile by value in the address; p90 is offered only if there are too few requests for higher percentiles.
QUANTILES = {"50": 0.5, "90": 0.9, "95": 0.95, "99": 0.99, "99.9": 0.999}
_OFFERED = ("50", "95", "99", "99.9")
# Width of the longest bar in its cell; the number is beside it. [percent]
_BAR_WIDTH = 30.0
# Smaller shares than the first are shown as zero; from the second on, a share is bold. [ratio]
_HALF_PERCENT, _CAUSE = 0.005, 0.2
# Functions in the note below the table.
_MAX_GROWN = 3


def blame_card(context: Context, comparison: PairComparison) -> Component:
    fewer = min(comparison.verdict.a_n, comparison.verdict.b_n)
    tools = _tabs(context, comparison)
    if not has_enough_samples(fewer, comparison.quantile):
        at = percentile(comparison.quantile)
        text = f"{at} needs {whole(samples_needed(comparison.quantile))} requests on both sides; one side has {whole(fewer)}."
        return card("Blame", empty(f"Too few requests for {at}", text), tools=tools, size="c5")
    frame, error = comparison.stages, comparison.verdict.error
    changes = [float(change) for change in frame["delta_seconds"] if abs(float(change)) > error]
    widest = max([abs(change) for change in changes] + [1e-9])
    # The zero line leaves space for the longest bar to the left.
    zero = min(_BAR_WIDTH, abs(min([*changes, 0.0])) / widest * _BAR_WIDTH)
    rows = [_stage_row(comparison, record, widest, zero) for record in records(frame)]
    head = (("Stage", "w1"), ("A", "r w2"), ("B", "r w2"), (f"change at {percentile(comparison.quantile)}", ""))
    body = table(head, rows, "Change by stage", css="insp wide", foot=_total(comparison))
    return card("Blame", body, tools=tools, foot=_grown_note(context, comparison), size="c5")


def _grown_note(context: Context, comparison: PairComparison) -> Component | None:
    functions = [function for function in grown_at(context, comparison.pair, comparison.quantile) if function.is_cause]
    lines: list[Node] = (
        [html.B("Functions that grew"), *(html.Div(function.sentence) for function in functions[:_MAX_GROWN])]
        if functions
        else []
    )
    blamed = comparison.growth[:1] if comparison.verdict.has_changed else ()
    if [growth.stage for growth in blamed] == ["dependency"]:
        cached, read = context.source.cached, context.source.read
        for name, side in (("A", comparison.pair.a), ("B", comparison.pair.b)):
            called = dependency_sentence(cached(read.dependency_split, side, comparison.quantile))
            lines += [html.Div(f"{name}: {called}")] if called else []
    return html.Div(lines) if lines else None


def change_words(comparison: PairComparison, record: dict[str, Any]) -> str:
    change, share = float(record["delta_seconds"]), float(record["share"])
    if abs(change) <= comparison.verdict.error:
        return f"±{THIN}{duration(abs(change))}"
    named = comparison.verdict.has_changed and abs(share) >= _HALF_PERCENT
    return duration(change, sign=True) + (f" · {percent(share)}" if named else "")


def total_words(comparison: QuantileComparison) -> str:
    if not comparison.has_changed:
        return f"±{THIN}{duration(abs(comparison.difference))}, within the error"
    return f"{duration(comparison.difference, sign=True)} · {signed_change(comparison.growth)}"


def _tabs(context: Context, comparison: PairComparison) -> Component:
    chosen = next((value for value, quantile in QUANTILES.items() if quantile == comparison.quantile), "")
    offered = [value for value in QUANTILES if value in _OFFERED or value == chosen]
    options = {value: (f"p{value}", context.view.here(p=value)) for value in offered}
    return link_tabs("Percentile", options, chosen)


def _total(comparison: PairComparison) -> Component:
    difference = comparison.verdict
    cells = [
        html.Th("End to end", scope="row"),
        html.Td(duration(difference.a_value), className="r now"),
        html.Td(duration(difference.b_value), className="r now"),
        html.Td(total_words(difference), className=VERDICT_WORDS[difference.kind][1]),
    ]
    return html.Tr(cells)


def _stage_row(comparison: PairComparison, record: dict[str, Any], widest: float, zero: float) -> Component:
    stage, change = str(record["stage"]), float(record["delta_seconds"])
    is_certain = abs(change) > comparison.verdict.error
    width = abs(change) / widest * _BAR_WIDTH if is_certain else 0.0
    main = is_certain and comparison.verdict.has_changed and abs(float(record["share"])) >= _CAUSE
    cells = [
        html.Th(html.Span([swatch(stage), label(stage)], className="nm"), scope="row"),
        html.Td(duration(float(record["a_seconds"])), className="r"),
        html.Td(duration(float(record["b_seconds"])), className="r now"),
        html.Td(_bar(stage, change, change_words(comparison, record), width, zero, main=main)),
    ]
    return html.Tr(cells, **attributes({"data-stage": stage}))


def _bar(stage: str, change: float, text: str, width: float, zero: float, *, main: bool) -> Component:
    left = zero if change >= 0 else zero - min(width, zero)
    note = html.B(text, className="main" if main else "", style={"left": f"calc({max(zero, left + width):.1f}% + 6px)"})
    bar = html.I(style={"left": f"{left:.1f}%", "width": f"{max(width, 0.6):.1f}%"}) if width else None
    parts = [html.I(className="z", style={"left": f"{zero:.1f}%"}), bar, note]
    return html.Span(parts, className=f"dv st-{hue(stage)}")


@dataclass(frozen=True, slots=True)
class Signal:
    name: str
    a: str
    b: str
    change: str = ""
    moved: bool = False
    hint: str = ""


def signals_card(context: Context, pair: Pair) -> Component:
    """Return the card of signals other than the code that could explain a change."""
    rows = [_signal_row(signal) for signal in signals(context, pair)]
    body = table(_HEAD, rows, "What else changed")
    return card("What else changed", body, sub="other possible causes of the change", size="c5", flush=True)


def signals(context: Context, pair: Pair) -> list[Signal]:
    return [
        Signal("Time compared", span(pair.a.end - pair.a.start), span(pair.b.end - pair.b.start)),
        *_load(context, pair),
        *_mix(context, pair),
        *_tokens(context, pair),
    ]


def _load(context: Context, pair: Pair) -> list[Signal]:
    source, sides = context.source, (pair.a, pair.b)
    failures = Indicator("availability")
    counted: list[Tally] = [source.cached(source.read.tally, selection, failures) for selection in sides]
    lengths = [max((selection.end - selection.start).total_seconds(), 1.0) for selection in sides]
    spent = [source.cached(source.read.latency, selection).sum for selection in sides]
    rates = [float(tally.total) / length for tally, length in zip(counted, lengths, strict=True)]
    inside = [seconds / length for seconds, length in zip(spent, lengths, strict=True)]
    return [
        Signal("Requests", count(float(counted[0].total)), count(float(counted[1].total))),
        _relative("Requests / s", rates),
        _relative("In flight, mean", inside, _LITTLE),
        _errors(*counted),
    ]


def _relative(name: str, values: Sequence[float | None], hint: str = "") -> Signal:
    a, b = values
    change = ratio_of(b, a)
    moved = change is not None and abs(change) >= TRAFFIC_NOISE
    text = "" if change is None else signed_change(change) if moved else "same"
    return Signal(name, count(a), count(b), text, moved, hint)


def _errors(before: Tally, after: Tally) -> Signal:
    """Return the signal of the failure rate; a difference within chance counts as equal."""
    a, b = (float(tally.bad) / float(tally.total) if tally.total else None for tally in (before, after))
    if a is None or b is None:
        return Signal("Errors", percent(a, 2), percent(b, 2))
    both = float(before.bad + after.bad) / float(before.total + after.total)
    noise = _STANDARD_ERRORS * math.sqrt(both * (1 - both) * (1 / float(before.total) + 1 / float(after.total)))
    moved = abs(b - a) >= max(_FEW_ERRORS, noise)
    return Signal("Errors", percent(a, 2), percent(b, 2), _points(b - a, 2) if moved else "same", moved)


def _mix(context: Context, pair: Pair) -> Iterable[Signal]:
    rows = {str(record["dimension"]): record for record in records(request_mix(context, pair))}
    return [_share(text, rows[dimension]) for dimension, text in _DIMENSIONS.items() if dimension in rows]


def _share(text: str, row: dict[str, Any]) -> Signal:
    moved = bool(row["changed"])
    change = _points(float(row["change"])) if moved else "same"
    name = f"{text} {row['value'] or 'no name'}"
    return Signal(name, percent(float(row["a_share"])), percent(float(row["b_share"])), change, moved, _MIXED)


def _tokens(context: Context, pair: Pair) -> Iterable[Signal]:
    a, b = token_histograms(context, pair)
    return [
        _relative(text, [median_value(a.get(kind)), median_value(b.get(kind))])
        for kind, text in ((TOKENS_IN, "Prompt tokens, p50"), (TOKENS_OUT, "Response tokens, p50"))
        if kind in a or kind in b
    ]


def _points(change: float, decimals: int = 0) -> str:
    return f"{'+' if change > 0 else ''}{percent(change, decimals).removesuffix('%')}pt"


def _signal_row(signal: Signal) -> Component:
    badge: Node = pill(signal.change, "warn" if signal.moved else "") if signal.change else None
    cells = [
        html.Td(html.Span(signal.name, className="cut", title=signal.hint or signal.name)),
        html.Td(signal.a, className="r muted"),
        html.Td(signal.b, className="r"),
        html.Td(badge, className="r"),
    ]
    return html.Tr(cells)
