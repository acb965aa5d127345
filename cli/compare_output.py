"""Output of a comparison: terminal tables, Markdown for a pull request, JUnit XML for CI, and JSON; styled text of commands."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, ParamSpec
from xml.etree import ElementTree as ET

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .. import dashboard
from ..analysis.comparison import CONFIDENCE, MIN_CHANGE, FailureDifference, QuantileComparison, requests_needed
from ..core.histogram import samples_needed
from ..core.names import DEFINITIONS
from ..core.stages import label
from ..dashboard.ui import format  # noqa: A004 - the module
from ..dashboard.ui.design_tokens import hue
from ..dashboard.ui.format import UNKNOWN, percentile
from .comparison import QUANTILES, RunComparison, Side, StageChange, ThresholdResult, TokenTimes

FULL, SHADED = "\u2588", "\u2592"

_TOKEN = re.compile(r"--st-(\w+): light-dark\(#\w+, (#\w{6})\)")
# Terminal fonts have no narrow space, and lines are broken only here.
_P = ParamSpec("_P")
_SPACES = str.maketrans("\u202f\u00a0", "  ")
_DIFFERENCE_HEAD = ("A", "B", "B is slower by", "", "99 % interval")
_OUTCOMES = {"passed": "passed", "failed": "FAILED", "unknown": "too few requests"}
_OUTCOME_STYLES = {"passed": "green", "failed": "bold red", "unknown": "yellow"}
# Minimum width of the stage table; a log file has no width of its own. [columns]
_MIN_COLUMNS = 120
_SUITE = "stagelens compare"
_COUNTED = (("failures", "failure"), ("errors", "error"))


def ordinary_spaces(text: str) -> str:
    """Return *text* with the special spaces of `dashboard.ui.format` replaced by ordinary ones."""
    return text.translate(_SPACES)


def _spaced(text: Callable[_P, str]) -> Callable[_P, str]:
    return lambda *arguments, **options: ordinary_spaces(text(*arguments, **options))


duration, percent, portion = _spaced(format.duration), _spaced(format.percent), _spaced(format.portion)
several, signed_change, whole = _spaced(format.several), _spaced(format.signed_change), _spaced(format.whole)


def styled(text: str, style: str = "") -> Text:
    return Text(ordinary_spaces(text), style)


def plain_table(first: str, *numbers: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column(first, overflow="ellipsis")
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def stage_colour(stage: str) -> str:
    """Return the colour of *stage* for dark backgrounds, which is legible on light ones, too.

    >>> stage_colour("queue")
    '#EDA227'
    """
    return _hue_colours()[hue(stage)]


@cache
def _hue_colours() -> dict[str, str]:
    tokens = Path(dashboard.__path__[0]) / "assets" / "tokens.css"
    return dict(_TOKEN.findall(tokens.read_text(encoding="utf-8")))


def difference_tables(
    comparison: RunComparison,
) -> Iterator[tuple[tuple[str, ...], list[tuple[tuple[str, ...], QuantileComparison]]]]:
    """Yield head and rows of the latency, and of the times to tokens (TTFT) and between tokens (TPOT) if there are any."""
    latency = [("", at_quantile) for at_quantile in comparison.latency]
    tokens = [
        (f"{measure.upper()} ", at_quantile)
        for measure, times in comparison.token_times.items()
        for quantile in QUANTILES
        if (at_quantile := times.at(quantile))
    ]
    for name, rows in (("Latency", latency), ("Tokens", tokens)):
        cells = [((f"{of}{percentile(row.quantile)}", *_difference_cells(row)), row) for of, row in rows]
        if cells:
            yield (name, *_DIFFERENCE_HEAD), cells


def stage_head(comparison: RunComparison) -> tuple[str, ...]:
    at = percentile(comparison.quantile)
    return (f"Stages in {at}", "A", "B", "B - A", "of the change", f"{at} of the stage: B - A", "99 % interval")


def stage_row(comparison: RunComparison, change: StageChange) -> tuple[str, ...]:
    """Return the cells of one stage; the share of the change is omitted if the latency is the same."""
    more = change.b_seconds - change.a_seconds
    return (
        label(change.stage),
        *(duration(seconds) for seconds in (change.a_seconds, change.b_seconds)),
        duration(more, sign=True),
        percent(round(change.share, 2) or 0.0) if comparison.at.has_changed else UNKNOWN,
        duration(change.own.difference, sign=True),
        interval_text(change.own),
    )


def interval_text(comparison: QuantileComparison) -> str:
    low, high = (duration(seconds, sign=True) for seconds in (comparison.low, comparison.high))
    if math.isinf(comparison.low) and math.isinf(comparison.high):
        return f"needs {whole(requests_needed(comparison.quantile))} requests"
    if math.isinf(comparison.high):
        return f"{low} or more"
    return f"{high} or less" if math.isinf(comparison.low) else f"{low} and {high}"


def verdict(comparison: RunComparison) -> str:
    """Return a sentence on whether B is slower and because of which stage, or which limits B exceeds."""
    at, where = comparison.at, percentile(comparison.quantile)
    if at.kind == "not_enough":
        return f"Too few requests to compare {where}: both sides need at least {whole(samples_needed(comparison.quantile))}."
    if at.kind == "same":
        exceeded = ", ".join(
            _exceeded_text(result) for result in comparison.threshold_results if result.outcome == "failed"
        )
        name = f"No difference of {MIN_CHANGE:.0%} or more" if at.is_certain else "No significant difference"
        return f"{name} at {where}{exceeded and f', but over the limit: {exceeded}'}."
    word = "slower" if at.kind == "regression" else "faster"
    size = f"{duration(abs(at.difference))} ({signed_change(at.growth)})"
    largest = comparison.largest_change
    why = (
        f"; {portion(largest.share)} of the change is in {label(largest.stage)}"
        if largest and largest.share > 0
        else ""
    )
    blamed = comparison.blamed_function
    code = f", {percent(blamed.share)} of that in {blamed.title}" if blamed else ""
    return f"B is {word} at {where} by {size}{why}{code}."


def threshold_cells(result: ThresholdResult) -> tuple[str, str, str]:
    difference = result.difference
    if isinstance(difference, FailureDifference):
        why = _failure_text(difference)
        if result.outcome == "passed" and difference.difference > result.threshold.limit:
            why += ": not significant"
        return result.threshold.text, _OUTCOMES[result.outcome], why
    if difference is None:
        return (
            result.threshold.text,
            _OUTCOMES[result.outcome],
            f"the two sides have no {result.threshold.subject} in common",
        )
    measured = f"{duration(difference.difference, sign=True)}, {signed_change(difference.growth)}"
    why = f"{result.threshold.subject} {measured}, between {interval_text(difference)}"
    if result.outcome == "unknown":
        needed = whole(requests_needed(difference.quantile))
        why = f"{result.threshold.subject} {measured}: both sides need {needed} requests"
    elif result.outcome == "passed" and difference.difference > result.threshold.allowed(difference.a_value or 0.0):
        why += ": not significant"
    return result.threshold.text, _OUTCOMES[result.outcome], why


def _exceeded_text(result: ThresholdResult) -> str:
    if not isinstance(result.difference, QuantileComparison):
        return result.threshold.subject
    return f"{result.threshold.subject} ({duration(result.difference.difference, sign=True)})"


def warnings(comparison: RunComparison) -> Sequence[str]:
    lines = [f"B has more errors: {_failure_text(comparison.failures)}."] if comparison.failures.are_more else []
    lines += [
        f"The mix of requests differs: {dimension} {value or 'none'} is {percent(a)} of A and {percent(b)} of B."
        for dimension, value, a, b in comparison.mixes
        if not (lines and dimension == "status")
    ]
    lines += [_excluded_text(times) for times in comparison.token_times.values() if any(times.excluded)]
    if comparison.too_few:
        wanted = whole(comparison.min_requests)
        lines.append(f"One side has fewer than {wanted} requests: no threshold is evaluated.")
    return lines


def _side_summary(side: Side) -> str:
    selection = side.selection
    text = f"{several(side.requests, 'request')} of {selection.service}"
    return f"{text}, {_utc_text(selection.start)} to {_utc_text(selection.end)} UTC" if side.has_window else text


def _utc_text(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def _failure_text(difference: FailureDifference) -> str:
    shares = (percent(share, 2) for share in (difference.a, difference.b))
    return "{} of A, {} of B: {:+.2f} to {:+.2f} percentage points".format(
        *shares, difference.low * 100, difference.high * 100
    )


def _excluded_text(times: TokenTimes) -> str:
    of_a, of_b = (several(count, "request") for count in times.excluded)
    compared = (
        f"is compared only for requests measured {DEFINITIONS.get(times.definition, times.definition)}"
        if times.definition
        else "is not compared"
    )
    return f"{times.measure.upper()} {compared}: {of_a} of A and {of_b} of B have another definition."


def _difference_cells(comparison: QuantileComparison) -> tuple[str, ...]:
    times = (duration(seconds) for seconds in (comparison.a_value, comparison.b_value))
    shown = UNKNOWN if comparison.growth is None else signed_change(comparison.growth)
    return (*times, duration(comparison.difference, sign=True), shown, interval_text(comparison))


# Columns shown side by side: all columns, or first the requests at the percentile and then each stage's own time.
_ONE_TABLE, _TWO_TABLES = (slice(1, None),), (slice(1, 5), slice(5, None))


def print_comparison(comparison: RunComparison, out: Console) -> None:
    if not out.is_terminal:
        out.width = max(out.width, _MIN_COLUMNS)
    for name, side in (("A", comparison.a), ("B", comparison.b)):
        out.print(styled(f"{name}  {side.name}  {_side_summary(side)}"), highlight=False)
    out.print()
    out.print(styled(verdict(comparison), "bold"), highlight=False)
    for warning in warnings(comparison):
        out.print(styled(warning, "yellow"), highlight=False)
    out.print()
    for head, rows in difference_tables(comparison):
        table = plain_table(*head)
        for cells, difference in rows:
            table.add_row(*cells, style="" if difference.is_certain else "dim")
        out.print(table)
        out.print()
    for columns in _ONE_TABLE if out.width >= _MIN_COLUMNS else _TWO_TABLES:
        out.print(_stage_table(comparison, columns))
        out.print()
    for result in comparison.threshold_results:
        limit, outcome, why = threshold_cells(result)
        out.print(
            Text.assemble(styled(f"{outcome:<12}", _OUTCOME_STYLES[result.outcome]), f"{limit}  ", styled(why, "dim")),
            highlight=False,
        )


def _stage_table(comparison: RunComparison, columns: slice) -> Table:
    head = stage_head(comparison)
    table = plain_table(head[0], *head[columns])
    for change in comparison.stages:
        name = Text.assemble(styled(f"{FULL} ", stage_colour(change.stage)), label(change.stage))
        table.add_row(name, *stage_row(comparison, change)[columns])
    return table


def markdown(comparison: RunComparison) -> str:
    sides = (("A", comparison.a), ("B", comparison.b))
    lines = [f"### {verdict(comparison)}", ""]
    lines += [f"- **{name}** {_escape_cell(side.name)}: {_escape_cell(_side_summary(side))}" for name, side in sides]
    lines += [f"- {_escape_cell(warning)}" for warning in warnings(comparison)]
    if comparison.threshold_results:
        lines += _markdown_rows(
            ("Threshold", "Outcome", "Measured"), (threshold_cells(result) for result in comparison.threshold_results)
        )
    for head, rows in difference_tables(comparison):
        lines += _markdown_rows(head, (cells for cells, _ in rows))
    lines += _markdown_rows(stage_head(comparison), (stage_row(comparison, change) for change in comparison.stages))
    return "\n".join(lines)


def _markdown_rows(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = ["", *(f"| {' | '.join(map(_escape_cell, row))} |" for row in (head, *rows))]
    return [*lines[:2], "|" + "---|" + "---:|" * (len(head) - 1), *lines[2:]]


def _escape_cell(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def junit_text(comparison: RunComparison) -> str:
    """Return *comparison* as JUnit XML: one test case for each threshold, or a single one without thresholds."""
    cases = [_test_case(result, too_few=comparison.too_few) for result in comparison.threshold_results]
    if not cases:
        cases = [ET.Element("testcase", classname=_SUITE, name="comparison")]
        if comparison.too_few:
            ET.SubElement(cases[0], "error", message=warnings(comparison)[-1])
    counts = {kind: str(sum(case.find(tag) is not None for case in cases)) for kind, tag in _COUNTED}
    suite = ET.Element("testsuite", {"name": _SUITE, "tests": str(len(cases)), **counts})
    suite.extend(cases)
    ET.SubElement(suite, "system-out").text = _xml_text(markdown(comparison))
    ET.indent(suite)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(suite, encoding="unicode")


def _test_case(result: ThresholdResult, *, too_few: bool) -> ET.Element:
    limit, outcome, why = threshold_cells(result)
    case = ET.Element("testcase", classname=_SUITE, name=_xml_text(limit))
    if too_few or result.outcome == "unknown":
        ET.SubElement(case, "error", message="too few requests").text = _xml_text(why)
    elif result.outcome == "failed":
        ET.SubElement(case, "failure", message=_xml_text(f"{outcome}: {why}")).text = _xml_text(why)
    return case


def _xml_text(text: str) -> str:
    return "".join(character if character.isprintable() or character == "\n" else "\ufffd" for character in text)


def json_text(comparison: RunComparison) -> str:
    """Return all numbers of *comparison* as JSON; times in seconds, null for unknown values."""
    document: dict[str, Any] = {
        "a": _side_json(comparison.a),
        "b": _side_json(comparison.b),
        "outcome": comparison.outcome,
        "verdict": verdict(comparison),
        "warnings": warnings(comparison),
        "confidence": CONFIDENCE,
        "latency": [_difference_json(quantile_comparison) for quantile_comparison in comparison.latency],
        "failures": _difference_json(comparison.failures),
        "tokens": {measure: _tokens_json(times) for measure, times in comparison.token_times.items()},
        "stages_at": percentile(comparison.quantile),
        "blamed": comparison.largest_change.stage if comparison.largest_change else None,
        "functions": [
            {
                "stage": function.stage,
                "function": function.title,
                "a_seconds": function.before_ms / 1e3,
                "b_seconds": function.after_ms / 1e3,
                "share": function.share,
            }
            for function in comparison.functions
        ],
        "stages": [
            {
                "stage": change.stage,
                "label": label(change.stage),
                "a_seconds": change.a_seconds,
                "b_seconds": change.b_seconds,
                "share_of_change": change.share,
                "own": _difference_json(change.own),
            }
            for change in comparison.stages
        ],
        "thresholds": [
            {
                "threshold": result.threshold.text,
                "outcome": result.outcome,
                "measured": _difference_json(result.difference) if result.difference else None,
            }
            for result in comparison.threshold_results
        ],
    }
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)


def _side_json(side: Side) -> dict[str, Any]:
    document: dict[str, Any] = {"name": side.name, "service": side.selection.service, "requests": side.requests}
    if side.has_window:
        document |= {"from": side.selection.start.isoformat(), "to": side.selection.end.isoformat()}
    return document


def _tokens_json(times: TokenTimes) -> dict[str, Any]:
    return {
        "definition": times.definition or None,
        "a_requests": times.a.count,
        "b_requests": times.b.count,
        "latency": [_difference_json(comparison) for quantile in QUANTILES if (comparison := times.at(quantile))],
    }


def _difference_json(comparison: QuantileComparison | FailureDifference) -> dict[str, Any]:
    if isinstance(comparison, FailureDifference):
        shares = {"a_share": comparison.a, "b_share": comparison.b, "difference": comparison.difference}
        return {**shares, "low": comparison.low, "high": comparison.high}
    return {
        "percentile": percentile(comparison.quantile),
        "verdict": comparison.kind,
        "a_seconds": comparison.a_value,
        "b_seconds": comparison.b_value,
        "difference_seconds": comparison.difference,
        "low_seconds": _finite(comparison.low),
        "high_seconds": _finite(comparison.high),
        "ratio": comparison.ratio,
        "ratio_low": comparison.ratio_low,
        "ratio_high": _finite(comparison.ratio_high),
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
