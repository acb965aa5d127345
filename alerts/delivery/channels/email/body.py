"""Body of a mail: as text, and as HTML of tables and inline styles, which mail programs render alike."""

from __future__ import annotations

from html import escape

from ....formatting import line
from ...chart import WIDTH
from ...message import Message
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
_BLOCK = "padding:12px 24px 6px"
_SANS = "font-family:system-ui,-apple-system,'Segoe UI',Roboto,Helvetica,Arial,sans-serif"
_BANDS = {"🔴": "#b3261e", "🟠": "#a34a00", "👀": "#3b5b92", "🟢": "#1b6e3c", "⚪": "#555b66"}
_DARK = """\
@media (prefers-color-scheme: dark) {
  .page, .card { background: #16181d !important; }
  .ink { color: #e8eaee !important; }
  .soft { color: #a9b0bd !important; }
  .link { color: #8fb4ff !important; }
  .rule { border-color: #343943 !important; }
}"""


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
        parts.append([f"What takes longer, {_line(comparison_basis(finding))}:", *rows])
    if finding.exemplars and not message.resolved:
        rows = [f"  {_line(what)} {link}".rstrip() for what, link in slow_requests(finding)]
        parts.append(["Slow requests to look at:", *rows])
    parts.append([f"{name}: {href}" for name, href in _links(message)])
    parts.append([*(_line(each) for each in small_print(message)), f"Incident {_line(message.incident)}"])
    return "\n\n".join("\n".join(lines) for lines in parts if lines) + "\n"


def mail_html(message: Message, chart: str = "") -> str:
    """Return the mail as HTML.

    Args:
        message: The message.
        chart: Address of the chart; without one a sparkline shows the trend.
    """
    body = "".join(
        (
            _title_band(message),
            _paragraphs(message),
            _facts(message),
            _also(message),
            _picture(message, chart),
            _stages(message),
            _examples(message),
            _buttons(message),
            _footer(message),
        )
    )
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{_text(headline(message))}</title><style>{_DARK}</style>"
    )
    card = (
        f'<table role="presentation" width="100%" cellpadding="0" cellspacing="0" class="card" '
        f'style="max-width:600px;background:#ffffff;border-radius:8px;overflow:hidden;{_SANS}">{body}</table>'
    )
    page = (
        '<table role="presentation" width="100%" cellpadding="0" cellspacing="0"><tr>'
        f'<td align="center" class="page" style="background:#f2f4f7;padding:16px 8px">{card}</td></tr></table>'
    )
    return f'<!doctype html><html lang="en"><head>{head}</head><body style="margin:0">{page}</body></html>'


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


def _title_band(message: Message) -> str:
    colour = _BANDS[icon(message)]
    name = _text(title(message))
    return _row(
        f'<h1 style="margin:0;font-size:19px;line-height:1.35;color:#ffffff;font-weight:600">{name}</h1>',
        f"background:{colour};padding:18px 24px",
    )


def _paragraphs(message: Message) -> str:
    first, *rest = _cause_and_impact(message)
    shown = f'<p class="ink" style="margin:0 0 6px;font-size:16px;font-weight:600;color:#1c2028">{_text(first)}</p>'
    for each in rest:
        shown += f'<p class="ink" style="margin:0 0 6px;font-size:15px;line-height:1.5;color:#1c2028">{_text(each)}</p>'
    return _row(shown, "padding:20px 24px 6px")


def _facts(message: Message) -> str:
    rows = "".join(
        f'<tr><td class="soft" style="padding:5px 16px 5px 0;font-size:13px;color:#5a6270;vertical-align:top;width:38%">'
        f'{_text(name)}</td><td class="ink" style="padding:5px 0;font-size:14px;color:#1c2028;vertical-align:top">{_text(value)}</td></tr>'
        for name, value in message_facts(message)
    )
    return _row(_table(rows), "padding:6px 24px")


def _also(message: Message) -> str:
    return _row(_caption("Also:") + _list([_text(each) for each in message.also]), _BLOCK) if message.also else ""


def _picture(message: Message, chart: str) -> str:
    if not chart:
        return "".join(_row(_caption(f"{shape} {about}"), _BLOCK) for shape, about in sparkline_of(message))
    shown = (
        f'<img src="{escape(chart)}" alt="{_text(chart_in_words(message.finding))}" width="{WIDTH}" '
        'style="display:block;width:100%;height:auto;border:0;border-radius:8px">'
    )
    return _row(shown, _BLOCK)


def _stages(message: Message) -> str:
    finding = message.finding
    if message.resolved or not finding.growth:
        return ""
    rows = "".join(
        f'<tr><td class="ink" style="padding:4px 12px 4px 0;font-size:14px;color:#1c2028;width:30%">{_text(stage)}</td>'
        f'<td width="40%" style="padding:4px 0"><div style="background:#d9822b;height:10px;border-radius:2px;'
        f'width:{max(1, min(100, round(100 * grown.share)))}%"></div></td>'
        f'<td class="ink" style="padding:4px 0 4px 12px;font-size:14px;color:#1c2028;text-align:right;white-space:nowrap">'
        f'{_text(growth)} <span class="soft" style="color:#5a6270">{_text(share)}</span></td></tr>'
        for (stage, growth, share), grown in zip(stage_table(finding), finding.growth, strict=False)
    )
    return _row(_caption(f"What takes longer, {comparison_basis(finding)}:") + _table(rows), _BLOCK)


def _examples(message: Message) -> str:
    found = [] if message.resolved else slow_requests(message.finding)
    if not found:
        return ""
    items = [_anchor(what, href) if href else _text(what) for what, href in found]
    return _row(_caption("Slow requests to look at:") + _list(items), _BLOCK)


def _buttons(message: Message) -> str:
    links = _links(message)
    if not links:
        return _row(_caption("No dashboard address is set (dashboard_url in slo.yaml)."), "padding:14px 24px 18px")
    name, href = links[0]
    shown = (
        f'<a href="{escape(href)}" style="display:inline-block;background:#1f4fa3;color:#ffffff;text-decoration:none;'
        f'font-size:15px;font-weight:600;padding:11px 18px;border-radius:6px;margin-right:16px">{name}</a>'
    )
    shown += "".join(_anchor(name, href) for name, href in links[1:])
    return _row(f'<div style="font-size:15px">{shown}</div>', "padding:16px 24px 20px")


def _footer(message: Message) -> str:
    lines = [*small_print(message), f"Incident {message.incident}"]
    shown = "<br>".join(_text(each) for each in lines)
    small = f'<p class="soft" style="margin:0;font-size:12px;line-height:1.6;color:#5a6270">{shown}</p>'
    return f'<tr><td class="rule" style="padding:12px 24px 18px;border-top:1px solid #e3e7ed">{small}</td></tr>'


def _row(inner: str, style: str) -> str:
    return f'<tr><td style="{style}">{inner}</td></tr>'


def _table(rows: str) -> str:
    return f'<table role="presentation" width="100%" cellpadding="0" cellspacing="0">{rows}</table>'


def _caption(said: str) -> str:
    return f'<p class="soft" style="margin:0 0 4px;font-size:13px;color:#5a6270">{_text(said)}</p>'


def _list(items: list[str]) -> str:
    shown = "".join(f'<li style="padding:2px 0">{each}</li>' for each in items)
    return f'<ul class="ink" style="margin:4px 0 0;padding-left:20px;font-size:14px;color:#1c2028">{shown}</ul>'


def _anchor(said: str, href: str) -> str:
    return f'<a href="{escape(href)}" class="link" style="color:#1f4fa3">{_text(said)}</a>'


def _text(raw: str) -> str:
    return escape(_line(raw))


def _line(raw: str) -> str:
    return line(raw, MAX_CELL_CHARS)
