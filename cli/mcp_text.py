"""Text of the answers of the MCP server: responses of the API as short sentences, and CSV tables, which have fewer tokens than JSON.

Times are in milliseconds with four digits. A long answer is cut between two rows.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from mcp.server.mcpserver.exceptions import ToolError

from ..core.histogram import has_enough_samples
from ..core.stages import HANDLER, OVERHEAD, STAGES, label
from ..core.text import truncated_percent

# Maximum length of an answer, about 4,000 tokens. [characters]
MAX_CHARS = 12_000
# Rows of each table in an answer with several tables.
MOST_ROWS = 8
# Share of p99 without a known stage from which a service needs more stages.
LARGE_UNEXPLAINED = 0.2
_MEDIAN = 50
# Columns of a breakdown that are no stages.
_NO_STAGES = ("percentile", "n", "value_seconds", "low_seconds", "high_seconds")
_COLUMN_SECONDS = re.compile(r"(?:(.+)_)?seconds")
# Response of the API, or a row of its table by column.
Row: TypeAlias = dict[str, Any]


def breakdown_text(service: str, percentile: float, response: Row) -> str:
    """Return the stages at the median and at *percentile*, from `query/breakdown` with both."""
    median, tail = rows_of(response)
    spent = {key: (median[key] or 0, tail[key] or 0) for key in tail if key not in _NO_STAGES}
    name, whole = f"p{percentile:g}", tail["value_seconds"]
    head = f"{service}, {response['from']} to {response['to']}, {response['requests']} requests: p50 {milliseconds(median['value_seconds'])} ms"
    if not whole:
        return f"{head}; too few requests for {name}."
    rows = [
        {
            "stage": stage_name(key),
            "p50_ms": usual * 1e3,
            f"{name}_ms": tail_seconds * 1e3,
            "share": tail_seconds / whole,
        }
        for key, (usual, tail_seconds) in sorted(spent.items(), key=lambda item: -item[1][1])
        if usual or tail_seconds
    ]
    tail_text = f", {name} {milliseconds(whole)} ms" if percentile > _MEDIAN else ""
    lines = [f"{head}{tail_text}. The stages add up to the latency:", *csv_lines(rows)]
    if not has_enough_samples(response["requests"], percentile / 100):
        lines.append(f"Too few requests for {name}: fewer than ten are above it, so it is uncertain.")
    unexplained = sum(spent.get(stage, (0, 0))[1] for stage in (OVERHEAD, HANDLER)) / whole
    if unexplained >= LARGE_UNEXPLAINED:
        lines.append(f"{unexplained:.0%} has no known stage; the functions below name its code.")
    return "\n".join(lines)


def shared_text(response: Row) -> list[str]:
    rows = [
        {key: row[key] for key in ("attribute", "value", "share_all", "share_slow", "lift", "explained_share")}
        for row in rows_of(response)[:MOST_ROWS]
    ]
    which = f"the slowest {response['slow_requests']} of {response['requests']} requests, about p{response['percentile'] * 100:g} and slower"
    why = f"; {response['reason']}" if response["reason"] else ""
    head = f"What slow requests share ({which}{why}): {one_line(response['summary'])}"
    return [_table(head, rows)] if rows else []


def replica_text(slow: Row | None) -> list[str]:
    return [f"Slow replica {slow['replica']} ({slow['place']}): {one_line(slow['summary'])}"] if slow else []


def functions_text(rows: Sequence[Row], percentile: float) -> list[str]:
    shown = [
        {
            "stage": stage_name(row["stage"]),
            "function": row["function"],
            "place": f"{row['file']}:{row['line']}",
            f"p{percentile:g}_seconds": row["tail_self_seconds"],
            "p50_seconds": row["median_self_seconds"],
            "share_of_stage": row["share"],
            "option_to_time_it": row["stage_option"],
        }
        for row in rows[:MOST_ROWS]
        if row["tail_self_seconds"]
    ]
    return [_table("Functions that slow requests are in:", shown)] if shown else []


def elsewhere_text(service: str, response: Row) -> list[str]:
    rows = rows_of(response)
    if all(row["service"] == service for row in rows):
        return []
    head = f"Critical path of {response['traces']} slow requests across services:"
    return [_table(head, _with_stage_names(rows[:MOST_ROWS]))]


def stalls_text(rows: Sequence[Row]) -> list[str]:
    spent = {key: seconds for row in rows for key, seconds in row.items() if key not in _NO_STAGES and seconds}
    stalls = ", ".join(f"{key} {milliseconds(seconds)} ms" for key, seconds in largest(spent).items())
    return [f"Stalls (cause:stage): {stalls}"] if stalls else []


def release_text(release: Row | None) -> list[str]:
    """Return the comparison with the version before, from `query/compare`; nothing unless the latency has changed."""
    if release is None or release["verdict"]["kind"] not in ("regression", "improvement"):
        return []
    return ["\n\n".join(comparison_text(release))]


def comparison_text(response: Row) -> list[str]:
    """Return verdict and stages of two sides, then the functions that grew, from `query/compare`."""
    a, b, verdict = response["a"], response["b"], response["verdict"]
    ratio = ""
    if verdict.get("ratio"):
        ratio = f", ratio {verdict['ratio']:.3g} (99 %: {cell(verdict['ratio_low'])} to {cell(verdict['ratio_high'])})"
    name = f"p{response['percentile'] * 100:g}"
    head = (
        f"{b['name']} ({b['from']} to {b['to']}, {verdict['b_n']} requests) against {a['name']} ({a['from']} to {a['to']}, "
        f"{verdict['a_n']} requests): {verdict['kind']} at {name}{ratio}."
    )
    parts = [_table(head, _with_stage_names(rows_of(response)[:MOST_ROWS]))]
    if response["functions"]:
        parts.append(_table("Functions that grew:", _with_stage_names(response["functions"][:MOST_ROWS])))
    return parts


def incident_text(incident: Row) -> str:
    facts = ("id", "service", "state", "severity", "kind", "since", "opened_at", "resolved_at", "version", "cause_kind")
    facts += ("cause", "silent_since", "impact")
    lines = [
        one_line(incident["headline"]),
        "; ".join(f"{key} {cell(incident[key])}" for key in facts if incident[key]),
    ]
    lines += csv_lines(_with_stage_names(incident["stages"]))
    lines += [incident[key] for key in ("called", "replica") if incident[key]]
    if incident["functions"]:
        lines += ["Functions that grew:", *csv_lines(incident["functions"])]
    if incident["shared"]:
        lines += ["What slow requests share:", *csv_lines(incident["shared"])]
    lines += (
        ["Bad requests:", *csv_lines(incident["exemplars"])] if incident["exemplars"] else [incident["no_exemplars"]]
    )
    for transition in incident["transitions"]:
        text = f": {one_line(transition['headline'])}" if transition["event"] == "note" else ""
        lines.append(f"{transition['at']} {transition['event']} {transition['note']}".rstrip() + text)
    return "\n".join([*lines, incident["link"], f"Next: why_slow(service={incident['service']!r})"])


def _table(head: str, rows: Sequence[Row]) -> str:
    return "\n".join([head, *csv_lines(rows)])


def _with_stage_names(rows: Sequence[Row]) -> list[Row]:
    return [{**row, "stage": stage_name(row["stage"])} for row in rows]


def rows_of(response: Row) -> list[Row]:
    names = [column["name"] for column in response["columns"]]
    return [dict(zip(names, row, strict=True)) for row in response["rows"]]


def largest(values: Mapping[str, float], most: int = MOST_ROWS) -> dict[str, float]:
    return dict(sorted(values.items(), key=lambda item: -item[1])[:most])


def stage_name(key: str | None) -> str:
    """Return the name of a stage as on pages; "" for none."""
    return label(key) if key else ""


def stage_key(name: str) -> str:
    """Return the key of the stage with this name in an answer; a name of the user's own stage is its key."""
    return next((stage.key for stage in STAGES if name.lower() == stage.label.lower()), name)


def milliseconds(seconds: float | None) -> str:
    return "unknown" if seconds is None else f"{seconds * 1e3:.4g}"


def csv_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return *rows* as the lines of a CSV table; columns in seconds become milliseconds, columns without any value are left out."""
    used = [key for key in (rows[0] if rows else ()) if any(row[key] not in (None, "", [], {}) for row in rows)]
    if not used:
        return []
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    scale = {key: 1e3 if _COLUMN_SECONDS.fullmatch(key) else 1 for key in used}
    writer.writerow([_COLUMN_SECONDS.sub(lambda match: f"{match[1] or 'time'}_ms", key) for key in used])
    for row in rows:
        cells = (row[key] * scale[key] if isinstance(row[key], float) else row[key] for key in used)
        writer.writerow([cell(content) for content in cells])
    return out.getvalue().splitlines()


def cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        # Shares near 1 are truncated: 0.99996 is not 1.
        return f"{float(truncated_percent(value, 0.999999)) / 100:.6g}" if 0.9 < value < 1 else f"{value:.4g}"  # noqa: PLR2004
    if isinstance(value, Mapping):
        return "; ".join(f"{key} {cell(nested)}" for key, nested in value.items())
    if isinstance(value, list):
        return "; ".join(map(cell, value))
    return one_line(str(value))


def one_line(text: str) -> str:
    """Return *text* on one line, with usual spaces instead of the narrow ones of pages."""
    return " ".join(text.split())


def paged(head: str, lines: Sequence[str], page: int) -> str:
    """Return *head* and the rows of one *page* of the table *lines*, whose first line has the names of the columns."""
    names, pages, size = lines[0], [[]], len(head)
    for line in lines[1:]:
        if pages[-1] and size + len(line) > MAX_CHARS:
            pages.append([])
            size = len(head)
        pages[-1].append(line)
        size += len(line) + 1
    if page > len(pages):
        msg = f"there are {len(pages)} pages; call again with page={len(pages)}"
        raise ToolError(msg)
    more = [f"Page {page} of {len(pages)}: call again with page={page + 1} for more."] if page < len(pages) else []
    return "\n".join([head, names, *pages[page - 1], *more])


def cut_text(text: str) -> str:
    """Return *text* up to the last line that fits into `MAX_CHARS`."""
    if len(text) <= MAX_CHARS:
        return text
    return f"{text[:MAX_CHARS].rpartition(chr(10))[0]}\nThe rest is left out; ask for one version, route or a shorter window."
