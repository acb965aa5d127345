"""The collectors themselves: which there are, how each is, what its numbers mean and when to worry."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

from dash import html
from dash.development.base_component import Component

from ...store.collectors import Report, Vitals
from ..components import Node, card, empty, table
from ..format import UNKNOWN, count, day, duration, percent, several, size, span, whole
from .collectors_facts import ORDER, Judged, State, judge
from .page import Context, Page, panel

PLACE = "/collectors"
_LOOKS: dict[State, tuple[str, str]] = {
    "silent": ("Silent", "stale"),
    "failing": ("Failing", "bad"),
    "look": ("Look", "warn"),
    "ok": ("OK", "good"),
}
# Each number, what it is, and when to worry.
_MEANINGS = (
    (
        "State",
        "OK, Look (it works, and something is to be mended), Failing, or Silent",
        "Failing or Silent for minutes",
    ),
    (
        "Exports/s",
        "requests with metrics, traces and logs that were taken, over the last minute",
        "none, while agents run",
    ),
    (
        "Refused/s",
        "requests that were answered with an error; senders try again where that helps",
        "it stays above none",
    ),
    ("Queue", "what was received and waits to be committed", "it grows: the store is slower than what comes"),
    ("Commit p99", "nearly all transactions took no longer", "above a second: agents begin to wait"),
    ("Memory, CPU", "of the process; bounded by STAGELENS_QUEUE_SIZE and a constant", "CPU near one core for long"),
    ("Targets", "engines whose own metrics are read: those that answer, of all", "one is down for minutes"),
    (
        "Spans waiting",
        "of foreign programs, until their requests are whole; shared by all collectors",
        "older than minutes",
    ),
    ("Rejected", "data points and spans that make no sense, since the start, by reason", "a reason that grows"),
)


def render(context: Context) -> Page:
    """Return all collectors, the gravest first."""
    now = context.source.now()
    # Past the memory of answers, which knows of new data and not of new reports.
    found = sorted(
        (judge(report, now) for report in context.source.read.collectors()),
        key=lambda each: (ORDER.index(each.state), each.report.name),
    )
    body: list[Node] = [_head(found), panel("Collectors", lambda: _list(context, found))]
    if found:
        body += [
            panel("To look at", lambda: _troubles(context, found)) if any(each.troubles for each in found) else None,
            panel("Store", lambda: _shared(found)),
            panel("What the numbers mean", _meanings),
        ]
    return Page("Collectors · Stagelens", [("Collectors", None)], body, PLACE)


def _head(found: Sequence[Judged]) -> Component:
    counts = Counter(each.state for each in found)
    said = [
        several(len(found), "collector"),
        *(f"{counts[state]} {_LOOKS[state][0].lower()}" for state in ORDER if counts[state]),
    ]
    sub = " · ".join(said if found else ["none has reported"])
    return html.Div(html.Div([html.H1("Collectors"), html.P(sub, className="sub")]), className="phead")


def _list(context: Context, found: Sequence[Judged]) -> Component:
    if not found:
        text = "One that writes into this store shows here within ten seconds of its start."
        code = html.Pre("stagelens collector", className="code mono", tabIndex=0)
        return card(None, empty("No collector has reported", text, code))
    heads = ("State", "Collector", "Exports/s", "Refused/s", "Queue", "Commit p99", "Memory", "CPU", "Targets")
    head = [(name, "" if place < 2 else "r") for place, name in enumerate(heads)]  # noqa: PLR2004 - what is no number
    rows = [_row(context, each) for each in found]
    return card("Collectors", table(head, rows, "Collectors"), sub="each says every ten seconds how it is", flush=True)


def _row(context: Context, found: Judged) -> Component:
    report, vitals, now = found.report, found.report.vitals, context.source.now()
    silent = found.state == "silent"
    cells = [
        html.Td(_badge(found.state)),
        html.Td(html.Div([html.Div(report.name, className="n"), html.Div(_about(report, now), className="s")])),
        *([html.Td(UNKNOWN, className="r") for _ in range(7)] if silent else _numbers(vitals)),
    ]
    return html.Tr(cells)


def _badge(state: State) -> Component:
    word, shape = _LOOKS[state]
    return html.Span([html.I(className=f"dot {shape}"), word], className=f"pill {shape}")


def _about(report: Report, now: datetime) -> str:
    age = now - datetime.fromtimestamp(report.started, UTC)
    return f"v{report.version}, started {span(max(age, timedelta()))} ago"


def _numbers(vitals: Vitals) -> list[Component]:
    exports, refused = sum(vitals.exports_per_second.values()), sum(vitals.refused_per_second.values())
    targets = vitals.targets_up + len(vitals.targets_down)
    queue = f"{whole(int(vitals.queue_batches))} ({size(vitals.queue_bytes)})" if vitals.queue_batches else "empty"
    told: list[tuple[str, str]] = [
        (count(exports), _split(vitals.exports_per_second)),
        (count(refused), _split(vitals.refused_per_second)),
        (queue, f"being received: {size(vitals.receiving_bytes)}"),
        (f"≤ {duration(vitals.commit_p99_seconds)}" if vitals.commit_p99_seconds else UNKNOWN, ""),
        (size(vitals.memory_bytes) if vitals.memory_bytes else UNKNOWN, ""),
        (percent(vitals.cpu_ratio), "of one core"),
        (f"{vitals.targets_up} of {targets}" if targets else "none", ""),
    ]
    return [html.Td(text, className="r", title=title or None) for text, title in told]


def _split(rates: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {count(rate)}" for name, rate in sorted(rates.items()))


def _troubles(context: Context, found: Sequence[Judged]) -> Component:
    rows = [
        html.Tr(
            [
                html.Td(
                    [
                        html.Div(trouble.text, className="n"),
                        html.Div(f"{each.report.name}: {trouble.cure}.", className="s"),
                    ],
                    className="wraps",
                ),
                html.Td(day(trouble.since.astimezone(context.view.zone)) if trouble.since else "", className="muted r"),
            ]
        )
        for each in found
        for trouble in each.troubles
    ]
    return card("To look at", table((("What", ""), ("Since", "r")), rows, "What to look at"), flush=True)


def _shared(found: Sequence[Judged]) -> Component:
    """Return what all collectors have in common, by the newest word, and what each of them refused."""
    newest = max(found, key=lambda each: each.report.seen).report.vitals
    budget = f" of {size(newest.store_budget_bytes)}" if newest.store_budget_bytes else ", without a limit"
    waited = span(timedelta(seconds=newest.spans_waiting_seconds))
    rejected: Counter[str] = Counter()
    for each in found:
        rejected.update(each.report.vitals.rejected)
    facts = {
        "Store": f"{size(newest.store_bytes)}{budget}" if newest.store_bytes else UNKNOWN,
        "Spans waiting": f"{size(newest.spans_waiting_bytes)}, the oldest for {waited}"
        if newest.spans_waiting_bytes
        else "none",
        **{f"Rejected: {reason}": count(number) for reason, number in rejected.most_common()},
    }
    rows: list[Component] = []
    for name, value in facts.items():
        rows += [html.Dt(name), html.Dd(value, title=value)]
    return card("Store", html.Dl(rows, className="kv"), sub="shared by all; rejected since each was started")


def _meanings() -> Component:
    rows = [
        html.Tr([html.Th(name, scope="row"), html.Td(what, className="wraps"), html.Td(worry, className="wraps")])
        for name, what, worry in _MEANINGS
    ]
    head = (("Number", ""), ("What it is", ""), ("Worry when", ""))
    return card("What the numbers mean", table(head, rows, "What the numbers mean"), flush=True)
