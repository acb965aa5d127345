"""A comparison as files: Markdown for a pull request, JUnit for what shows test results, JSON for anything else."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any
from xml.etree import ElementTree as ET

from ..core.confidence import CONFIDENCE, FailureDifference
from ..core.stages import label
from ..dashboard.format import percentile
from . import comparing_words as words
from .answers import Answers
from .comparison import QUANTILES, Contrast, Judged, Side
from .difference import Difference

_SUITE = "stagelens compare"


def markdown(contrast: Contrast) -> str:
    """Return *contrast* as Markdown."""
    sides = zip("AB", (contrast.a, contrast.b), words.counted(contrast), strict=True)
    lines = [f"### {words.verdict(contrast)}", ""]
    lines += [f"- **{name}** {_cell(side.name)}: {_cell(count)}" for name, side, count in sides]
    lines += [f"- {_cell(each)}" for each in words.warnings(contrast)]
    if contrast.judged:
        lines += _table(("Threshold", "Outcome", "Measured"), (words.judgement(each) for each in contrast.judged))
    lines += _table(words.LATENCY_HEAD, map(words.latency_row, contrast.latency))
    rows = [row for row, _ in words.answers_rows(contrast)]
    lines += _table(words.ANSWERS_HEAD, rows) if rows else []
    lines += _table(words.stage_head(contrast), (words.stage_row(contrast, each) for each in contrast.stages))
    return "\n".join(lines)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    made = ["", *(f"| {' | '.join(map(_cell, row))} |" for row in (head, *rows))]
    return [*made[:2], "|" + "---|" + "---:|" * (len(head) - 1), *made[2:]]


def _cell(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def junit_text(contrast: Contrast) -> str:
    """Return *contrast* as JUnit XML: a test case for each threshold, one in all where there is none."""
    cases = [_case(each, too_few=contrast.too_few) for each in contrast.judged]
    if not cases:
        cases = [ET.Element("testcase", classname=_SUITE, name="comparison")]
        if contrast.too_few:
            ET.SubElement(cases[0], "error", message=words.warnings(contrast)[-1])
    counts = {kind: str(sum(case.find(tag) is not None for case in cases)) for kind, tag in _COUNTED}
    suite = ET.Element("testsuite", {"name": _SUITE, "tests": str(len(cases)), **counts})
    suite.extend(cases)
    ET.SubElement(suite, "system-out").text = _legal(markdown(contrast))
    ET.indent(suite)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(suite, encoding="unicode")


_COUNTED = (("failures", "failure"), ("errors", "error"))


def _case(found: Judged, *, too_few: bool) -> ET.Element:
    limit, outcome, why = words.judgement(found)
    case = ET.Element("testcase", classname=_SUITE, name=_legal(limit))
    if too_few or found.outcome == "unknown":
        ET.SubElement(case, "error", message="too few requests to tell").text = _legal(why)
    elif found.outcome == "failed":
        ET.SubElement(case, "failure", message=_legal(f"{outcome}: {why}")).text = _legal(why)
    return case


def _legal(text: str) -> str:
    """Return *text* without what XML cannot hold."""
    return "".join(each if each.isprintable() or each == "\n" else "\ufffd" for each in text)


def json_text(contrast: Contrast) -> str:
    """Return all numbers of *contrast*; times in seconds, null for what is not known."""
    made: dict[str, Any] = {
        "a": _side(contrast.a),
        "b": _side(contrast.b),
        "outcome": contrast.outcome,
        "verdict": words.verdict(contrast),
        "warnings": words.warnings(contrast),
        "confidence": CONFIDENCE,
        "latency": [_numbers(each) for each in contrast.latency],
        "failures": _numbers(contrast.failures),
        "tokens": {measure: _tokens(each) for measure, each in contrast.answers.items()},
        "stages_at": percentile(contrast.quantile),
        "blamed": contrast.blamed.stage if contrast.blamed else None,
        "stages": [
            {
                "stage": each.stage,
                "label": label(each.stage),
                "a_seconds": each.a_seconds,
                "b_seconds": each.b_seconds,
                "share_of_change": each.share,
                "own": _numbers(each.own),
            }
            for each in contrast.stages
        ],
        "thresholds": [
            {
                "threshold": each.threshold.text,
                "outcome": each.outcome,
                "measured": _numbers(each.difference) if each.difference else None,
            }
            for each in contrast.judged
        ],
    }
    return json.dumps(made, indent=2, ensure_ascii=False, allow_nan=False)


def _side(side: Side) -> dict[str, Any]:
    made: dict[str, Any] = {"name": side.name, "service": side.selection.service, "requests": side.requests}
    if side.has_window:
        made |= {"from": side.selection.start.isoformat(), "to": side.selection.end.isoformat()}
    return made


def _tokens(found: Answers) -> dict[str, Any]:
    return {
        "definition": found.definition or None,
        "a_requests": found.a.count,
        "b_requests": found.b.count,
        "latency": [_numbers(each) for quantile in QUANTILES if (each := found.at(quantile))],
    }


def _numbers(found: Difference | FailureDifference) -> dict[str, Any]:
    if isinstance(found, FailureDifference):
        shares = {"a_share": found.a, "b_share": found.b, "difference": found.value}
        return {**shares, "low": found.low, "high": found.high}
    return {
        "percentile": percentile(found.quantile),
        "a_seconds": found.a.value,
        "b_seconds": found.b.value,
        "difference_seconds": found.value,
        "low_seconds": found.low if math.isfinite(found.low) else None,
        "high_seconds": found.high if math.isfinite(found.high) else None,
    }
