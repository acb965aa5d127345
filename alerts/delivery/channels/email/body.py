"""Body of a mail: as text, and as HTML by the template body.html."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from jinja2 import Environment, Template

from ....formatting import line
from ...chart import WIDTH
from ...message import Finding, Message
from ...message_text import (
    cause_text,
    chart_in_words,
    comparison_basis,
    headline,
    icon,
    impact_text,
    message_facts,
    slow_requests,
    small_print,
    sparkline_of,
    stage_table,
    title,
)

# Length limit of one cell; the list of facts is never cut.
MAX_CELL_CHARS = 300
_COLOURS = {"🔴": "#b3261e", "🟠": "#a34a00", "👀": "#3b5b92", "🟢": "#1b6e3c", "⚪": "#555b66"}


def mail_text(message: Message) -> str:
    """Return the mail as text."""
    finding = message.finding
    parts = [
        [_line(headline(message))],
        _cause_and_impact(message),
        [f"{name}: {_line(value)}" for name, value in message_facts(message)],
    ]
    parts.append([f"{shape}  {_line(about)}" for shape, about in sparkline_of(message)])
    if message.also:
        parts.append(["Also:", *(f"  {_line(each)}" for each in message.also)])
    if finding.growth and not message.resolved:
        rows = [f"  {_line(stage)}: {growth} ({share})" for stage, growth, share in stage_table(finding)]
        parts.append([f"Stages that grew, {_line(comparison_basis(finding))}:", *rows])
    if finding.exemplars and not message.resolved:
        rows = [f"  {_line(what)} {link}".rstrip() for what, link in slow_requests(finding)]
        parts.append(["Slow requests:", *rows])
    parts.append([f"{name}: {href}" for name, href in _links(message)])
    parts.append([*(_line(each) for each in small_print(message)), f"Incident {_line(message.incident)}"])
    return "\n\n".join("\n".join(lines) for lines in parts if lines) + "\n"


def mail_html(message: Message, chart: str = "") -> str:
    """Return the mail as HTML.

    Args:
        message: The message.
        chart: Address of the chart; without one a sparkline shows the trend.
    """
    finding, is_open = message.finding, not message.resolved
    return _template().render(
        headline=headline(message),
        colour=_COLOURS[icon(message)],
        title=title(message),
        paragraphs=_cause_and_impact(message),
        facts=message_facts(message),
        also=[(each, "") for each in message.also],
        chart=chart,
        chart_in_words=chart_in_words(finding) if chart else "",
        chart_width=WIDTH,
        sparklines=[] if chart else sparkline_of(message),
        basis=comparison_basis(finding),
        stages=_stages_with_percent(finding) if is_open else [],
        requests=slow_requests(finding) if is_open else [],
        links=_links(message),
        small_print=[*small_print(message), f"Incident {message.incident}"],
    )


@cache
def _template() -> Template:
    environment = Environment(autoescape=True)
    environment.filters["cell"] = _line
    return environment.from_string((files(__package__ or "") / "body.html").read_text(encoding="utf-8"))


def _cause_and_impact(message: Message) -> list[str]:
    """Return cause, impact and the description of the SLO."""
    why = _line(cause_text(message))
    lines = [why[:1].upper() + why[1:] + "."]
    if not message.resolved:
        lines.append(_line(impact_text(message.finding)))
    if message.finding.description:
        lines.append(_line(message.finding.description))
    return lines


def _links(message: Message) -> list[tuple[str, str]]:
    links = [("Where the time goes", message.finding.link), ("Runbook", message.finding.runbook)]
    return [(name, href) for name, href in links if href]


def _stages_with_percent(finding: Finding) -> list[tuple[tuple[str, str, str], int]]:
    """Return the rows of the stage table, each with the length of its bar [percent]."""
    rows = zip(stage_table(finding), finding.growth, strict=False)
    return [(row, max(1, min(100, round(100 * grown.share)))) for row, grown in rows]


def _line(raw: str) -> str:
    return line(raw, MAX_CELL_CHARS)
