"""Output of a comparison: terminal tables, Markdown for a pull request, JUnit XML for CI, and JSON; styled text of commands."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
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
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    made.add_column(first, overflow="ellipsis")
    for name in numbers:
        made.add_column(name, justify="right", no_wrap=True)
    return made


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


LATENCY_HEAD = ("Latency", "A", "B", "B is slower by", "", "99 % interval")
# TTFT: time to first token; TPOT: time per output token.
TOKENS_HEAD = ("Tokens", *LATENCY_HEAD[1:])
_OUTCOMES = {"passed": "passed", "failed": "FAILED", "unknown": "too few requests"}


def latency_row(found: QuantileComparison) -> tuple[str, ...]:
    return (percentile(found.quantile), *_difference_cells(found))


def token_rows(comparison: RunComparison) -> list[tuple[tuple[str, ...], QuantileComparison]]:
    return [
        ((f"{measure.upper()} {percentile(quantile)}", *_difference_cells(found)), found)
        for measure, each in comparison.token_times.items()
        for quantile in QUANTILES
        if (found := each.at(quantile))
    ]


def stage_head(comparison: RunComparison) -> tuple[str, ...]:
    at = percentile(comparison.quantile)
    return (f"Stages in {at}", "A", "B", "B - A", "of the change", f"{at} of the stage: B - A", "99 % interval")


def stage_row(comparison: RunComparison, found: StageChange) -> tuple[str, ...]:
    """Return the cells of one stage; the share of the change is omitted if the latency is the same."""
    more = found.b_seconds - found.a_seconds
    return (
        label(found.stage),
        *(duration(each) for each in (found.a_seconds, found.b_seconds)),
        duration(more, sign=True),
        percent(round(found.share, 2) or 0.0) if comparison.has_changed else UNKNOWN,
        duration(found.own.difference, sign=True),
        interval_text(found.own),
    )


def interval_text(found: QuantileComparison) -> str:
    low, high = (duration(each, sign=True) for each in (found.low, found.high))
    if math.isinf(found.low) and math.isinf(found.high):
        return f"needs {whole(requests_needed(found.quantile))} requests"
    if math.isinf(found.high):
        return f"{low} or more"
    return f"{high} or less" if math.isinf(found.low) else f"{low} and {high}"


def verdict(comparison: RunComparison) -> str:
    """Return a sentence on whether B is slower and because of which stage, or which limits B exceeds."""
    at, where = comparison.at, percentile(comparison.quantile)
    if at.kind == "not_enough":
        return f"Too few requests to compare {where}: both sides need at least {whole(samples_needed(comparison.quantile))}."
    if at.kind == "same":
        exceeded = ", ".join(_exceeded_text(each) for each in comparison.threshold_results if each.outcome == "failed")
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


def threshold_cells(found: ThresholdResult) -> tuple[str, str, str]:
    difference = found.difference
    if isinstance(difference, FailureDifference):
        why = _failure_text(difference)
        if found.outcome == "passed" and difference.difference > found.threshold.limit:
            why += ": not significant"
        return found.threshold.text, _OUTCOMES[found.outcome], why
    if difference is None:
        return (
            found.threshold.text,
            _OUTCOMES[found.outcome],
            f"the two sides have no {found.threshold.subject} in common",
        )
    measured = f"{duration(difference.difference, sign=True)}, {signed_change(difference.growth)}"
    why = f"{found.threshold.subject} {measured}, between {interval_text(difference)}"
    if found.outcome == "unknown":
        needed = whole(requests_needed(difference.quantile))
        why = f"{found.threshold.subject} {measured}: both sides need {needed} requests"
    elif found.outcome == "passed" and difference.difference > found.threshold.allowed(difference.a_value or 0.0):
        why += ": not significant"
    return found.threshold.text, _OUTCOMES[found.outcome], why


def _exceeded_text(found: ThresholdResult) -> str:
    if not isinstance(found.difference, QuantileComparison):
        return found.threshold.subject
    return f"{found.threshold.subject} ({duration(found.difference.difference, sign=True)})"


def warnings(comparison: RunComparison) -> Sequence[str]:
    lines = [f"B has more errors: {_failure_text(comparison.failures)}."] if comparison.failures.are_more else []
    lines += [
        f"The mix of requests differs: {dimension} {value or 'none'} is {percent(a)} of A and {percent(b)} of B."
        for dimension, value, a, b in comparison.mixes
        if not (lines and dimension == "status")
    ]
    lines += [_excluded_text(each) for each in comparison.token_times.values() if any(each.excluded)]
    if comparison.too_few:
        wanted = whole(comparison.min_requests)
        lines.append(f"One side has fewer than {wanted} requests: no threshold is evaluated.")
    return lines


def request_counts(comparison: RunComparison) -> tuple[str, str]:
    a, b = (_side_summary(side) for side in (comparison.a, comparison.b))
    return a, b


def _side_summary(side: Side) -> str:
    selection = side.selection
    text = f"{several(side.requests, 'request')} of {selection.service}"
    return f"{text}, {_utc_text(selection.start)} to {_utc_text(selection.end)} UTC" if side.has_window else text


def _utc_text(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def _failure_text(found: FailureDifference) -> str:
    shares = (percent(share, 2) for share in (found.a, found.b))
    return "{} of A, {} of B: {:+.2f} to {:+.2f} percentage points".format(*shares, found.low * 100, found.high * 100)


def _excluded_text(found: TokenTimes) -> str:
    of_a, of_b = (several(each, "request") for each in found.excluded)
    compared = (
        f"is compared only for requests measured {DEFINITIONS.get(found.definition, found.definition)}"
        if found.definition
        else "is not compared"
    )
    return f"{found.measure.upper()} {compared}: {of_a} of A and {of_b} of B have another definition."


def _difference_cells(found: QuantileComparison) -> tuple[str, ...]:
    times = (duration(each) for each in (found.a_value, found.b_value))
    shown = UNKNOWN if found.growth is None else signed_change(found.growth)
    return (*times, duration(found.difference, sign=True), shown, interval_text(found))


_OUTCOME_STYLES = {"passed": "green", "failed": "bold red", "unknown": "yellow"}
# Minimum width of the stage table; a log file has no width of its own. [columns]
_MIN_COLUMNS = 120
# Columns shown side by side: all columns, or first the requests at the percentile and then each stage's own time.
_ONE_TABLE, _TWO_TABLES = (slice(1, None),), (slice(1, 5), slice(5, None))


def print_comparison(comparison: RunComparison, out: Console) -> None:
    if not out.is_terminal:
        out.width = max(out.width, _MIN_COLUMNS)
    for name, side, counted in zip("AB", (comparison.a, comparison.b), request_counts(comparison), strict=True):
        out.print(styled(f"{name}  {side.name}  {counted}"), highlight=False)
    out.print()
    out.print(styled(verdict(comparison), "bold"), highlight=False)
    for warning in warnings(comparison):
        out.print(styled(warning, "yellow"), highlight=False)
    out.print()
    out.print(_difference_table(LATENCY_HEAD, ((latency_row(each), each) for each in comparison.latency)))
    out.print()
    tokens = _difference_table(TOKENS_HEAD, token_rows(comparison))
    if tokens.rows:
        out.print(tokens)
        out.print()
    for columns in _ONE_TABLE if out.width >= _MIN_COLUMNS else _TWO_TABLES:
        out.print(_stage_table(comparison, columns))
        out.print()
    for each in comparison.threshold_results:
        limit, outcome, why = threshold_cells(each)
        out.print(
            Text.assemble(styled(f"{outcome:<12}", _OUTCOME_STYLES[each.outcome]), f"{limit}  ", styled(why, "dim")),
            highlight=False,
        )


def _stage_table(comparison: RunComparison, columns: slice) -> Table:
    head = stage_head(comparison)
    made = plain_table(head[0], *head[columns])
    for each in comparison.stages:
        name = Text.assemble(styled(f"{FULL} ", stage_colour(each.stage)), label(each.stage))
        made.add_row(name, *stage_row(comparison, each)[columns])
    return made


def _difference_table(head: Sequence[str], rows: Iterable[tuple[Sequence[str], QuantileComparison]]) -> Table:
    made = plain_table(*head)
    for cells, found in rows:
        made.add_row(*cells, style="" if found.is_certain else "dim")
    return made


_SUITE = "stagelens compare"


def markdown(comparison: RunComparison) -> str:
    sides = zip("AB", (comparison.a, comparison.b), request_counts(comparison), strict=True)
    lines = [f"### {verdict(comparison)}", ""]
    lines += [f"- **{name}** {_escape_cell(side.name)}: {_escape_cell(count)}" for name, side, count in sides]
    lines += [f"- {_escape_cell(each)}" for each in warnings(comparison)]
    if comparison.threshold_results:
        lines += _markdown_rows(
            ("Threshold", "Outcome", "Measured"), (threshold_cells(each) for each in comparison.threshold_results)
        )
    lines += _markdown_rows(LATENCY_HEAD, map(latency_row, comparison.latency))
    rows = [row for row, _ in token_rows(comparison)]
    lines += _markdown_rows(TOKENS_HEAD, rows) if rows else []
    lines += _markdown_rows(stage_head(comparison), (stage_row(comparison, each) for each in comparison.stages))
    return "\n".join(lines)


def _markdown_rows(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    made = ["", *(f"| {' | '.join(map(_escape_cell, row))} |" for row in (head, *rows))]
    return [*made[:2], "|" + "---|" + "---:|" * (len(head) - 1), *made[2:]]


def _escape_cell(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def junit_text(comparison: RunComparison) -> str:
    """Return *comparison* as JUnit XML: one test case for each threshold, or a single one without thresholds."""
    cases = [_test_case(each, too_few=comparison.too_few) for each in comparison.threshold_results]
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


_COUNTED = (("failures", "failure"), ("errors", "error"))


def _test_case(found: ThresholdResult, *, too_few: bool) -> ET.Element:
    limit, outcome, why = threshold_cells(found)
    case = ET.Element("testcase", classname=_SUITE, name=_xml_text(limit))
    if too_few or found.outcome == "unknown":
        ET.SubElement(case, "error", message="too few requests").text = _xml_text(why)
    elif found.outcome == "failed":
        ET.SubElement(case, "failure", message=_xml_text(f"{outcome}: {why}")).text = _xml_text(why)
    return case


def _xml_text(text: str) -> str:
    return "".join(each if each.isprintable() or each == "\n" else "\ufffd" for each in text)


def json_text(comparison: RunComparison) -> str:
    """Return all numbers of *comparison* as JSON; times in seconds, null for unknown values."""
    made: dict[str, Any] = {
        "a": _side_json(comparison.a),
        "b": _side_json(comparison.b),
        "outcome": comparison.outcome,
        "verdict": verdict(comparison),
        "warnings": warnings(comparison),
        "confidence": CONFIDENCE,
        "latency": [_difference_json(each) for each in comparison.latency],
        "failures": _difference_json(comparison.failures),
        "tokens": {measure: _tokens_json(each) for measure, each in comparison.token_times.items()},
        "stages_at": percentile(comparison.quantile),
        "blamed": comparison.largest_change.stage if comparison.largest_change else None,
        "functions": [
            {
                "stage": each.stage,
                "function": each.title,
                "a_seconds": each.before_ms / 1e3,
                "b_seconds": each.after_ms / 1e3,
                "share": each.share,
            }
            for each in comparison.functions
        ],
        "stages": [
            {
                "stage": each.stage,
                "label": label(each.stage),
                "a_seconds": each.a_seconds,
                "b_seconds": each.b_seconds,
                "share_of_change": each.share,
                "own": _difference_json(each.own),
            }
            for each in comparison.stages
        ],
        "thresholds": [
            {
                "threshold": each.threshold.text,
                "outcome": each.outcome,
                "measured": _difference_json(each.difference) if each.difference else None,
            }
            for each in comparison.threshold_results
        ],
    }
    return json.dumps(made, indent=2, ensure_ascii=False, allow_nan=False)


def _side_json(side: Side) -> dict[str, Any]:
    made: dict[str, Any] = {"name": side.name, "service": side.selection.service, "requests": side.requests}
    if side.has_window:
        made |= {"from": side.selection.start.isoformat(), "to": side.selection.end.isoformat()}
    return made


def _tokens_json(found: TokenTimes) -> dict[str, Any]:
    return {
        "definition": found.definition or None,
        "a_requests": found.a.count,
        "b_requests": found.b.count,
        "latency": [_difference_json(each) for quantile in QUANTILES if (each := found.at(quantile))],
    }


def _difference_json(found: QuantileComparison | FailureDifference) -> dict[str, Any]:
    if isinstance(found, FailureDifference):
        shares = {"a_share": found.a, "b_share": found.b, "difference": found.difference}
        return {**shares, "low": found.low, "high": found.high}
    return {
        "percentile": percentile(found.quantile),
        "verdict": found.kind,
        "a_seconds": found.a_value,
        "b_seconds": found.b_value,
        "difference_seconds": found.difference,
        "low_seconds": _finite(found.low),
        "high_seconds": _finite(found.high),
        "ratio": found.ratio,
        "ratio_low": found.ratio_low,
        "ratio_high": _finite(found.ratio_high),
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
