"""Collectors page: state, metrics and problems of every collector, each problem with its fix."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Literal

from dash import html
from dash.development.base_component import Component

from ...core.histogram import Histogram
from ...core.names import COLLECTOR_LOST, PROBE_DURATION, STATUS_ERROR
from ...core.stages import OTHER, UNTIMED
from ...store.collectors import LOSSES, SILENT_AFTER, Loss, Report, Vitals
from ..ui.components import Node, card, code_block, dot, empty, link, table, with_code
from ..ui.format import UNKNOWN, count, day, duration, percent, several, size, span, whole
from ..view import service_path
from .page import Context, Page, clock_or_date, panel

State = Literal["silent", "failing", "look", "ok"]
# Most severe first.
ORDER: tuple[State, ...] = ("silent", "failing", "look", "ok")
# With slower commits, exports wait longer than the usual client timeout of 10 s.
SLOW_COMMIT_SECONDS = 1.0
# Requests are aggregated within a second or two of their last span; up to 4 MiB of spans wait up to an hour for a root.
LONG_WAIT, LONGEST_WAIT, MAX_WAITING = timedelta(minutes=10), timedelta(minutes=70), 4 * 1024**2
# A larger clock error assigns data to other buckets.
CLOCK_AHEAD = timedelta(seconds=10)
# Reasons of rejected requests by HTTP status, with the fix.
_REFUSALS = {
    "401": "the token or certificate of senders is missing or wrong: compare the settings of agents and collector",
    "403": "the certificate of senders is not allowed: add its name under access.certificates",
    "429": "a client exceeds its rate, or the queue is full: raise the limit, or start another collector",
    "503": "the store does not commit in time: check the database",
    "413": "requests are too large: send smaller batches, or raise STAGELENS_MAX_BODY",
    "400": "requests cannot be parsed: see the logs of the senders",
}
_OTHER_REFUSAL = "see the logs of the senders"
PLACE = "/collectors"
_BADGES: dict[State, tuple[str, str]] = {
    "silent": ("Silent", "stale"),
    "failing": ("Failing", "bad"),
    "look": ("Degraded", "warn"),
    "ok": ("OK", "good"),
}
# Metrics of a collector: title, meaning, and critical values.
_MEANINGS = (
    (
        "State",
        "OK, Degraded (the collector works, but a problem needs a fix), Failing, or Silent",
        "Failing or Silent for minutes",
    ),
    ("Exports/s", "accepted requests with metrics, traces and logs, over the last minute", "zero, while agents run"),
    ("Refused/s", "requests rejected with an error; senders retry where that helps", "above zero for minutes"),
    ("Queue", "received data that waits to be committed", "growing: the store is slower than the senders"),
    ("Commit p99", "99 % of transactions are faster", "above one second: agents wait"),
    ("Memory, CPU", "of the process; STAGELENS_QUEUE_SIZE limits the memory", "CPU near one core for minutes"),
    ("Targets", "number of engines that respond, of all scraped engines", "an engine is down for minutes"),
    (
        "Spans waiting",
        "spans of incomplete requests; shared by all collectors",
        "more than 4 MiB, older than some minutes",
    ),
    ("Rejected", "invalid data points and spans since the start, by reason", "a number that grows"),
    ("Not counted", "spans and exports in the window that are in no request, by service", "above zero"),
)


def render(context: Context) -> Page:
    now = context.source.now()
    # Not cached: the cache expires with new data, not with new reports.
    collectors = sorted(
        (collector_status(report, now) for report in context.source.read.collectors()),
        key=lambda collector: (ORDER.index(collector.state), collector.report.name),
    )
    body: list[Node] = [_head(collectors), panel("Collectors", lambda: _list(context, collectors))]
    if collectors:
        body += [
            panel("To check", lambda: _problems(context, collectors))
            if any(collector.troubles for collector in collectors)
            else None,
            panel("Not counted", lambda: _losses(context)),
            stopped_note(context),
            panel("Store", lambda: _shared(collectors)),
            panel("Meaning of the numbers", _meanings),
        ]
    return Page("Collectors · Stagelens", [("Collectors", None)], body, PLACE)


def _head(collectors: Sequence[CollectorStatus]) -> Component:
    counts = Counter(collector.state for collector in collectors)
    parts = [
        several(len(collectors), "collector"),
        *(f"{counts[state]} {_BADGES[state][0].lower()}" for state in ORDER if counts[state]),
    ]
    sub = " · ".join(parts if collectors else ["no collector has reported"])
    return html.Div(html.Div([html.H1("Collectors"), html.P(sub, className="sub")]), className="phead")


def _list(context: Context, collectors: Sequence[CollectorStatus]) -> Component:
    if not collectors:
        text = "A collector that writes to this store appears here within ten seconds of its start."
        code = code_block("stagelens collector")
        return card(None, empty("No collector has reported", text, code))
    heads = ("State", "Collector", "Exports/s", "Refused/s", "Queue", "Commit p99", "Memory", "CPU", "Targets")
    head = [(name, "" if index < 2 else "r") for index, name in enumerate(heads)]  # noqa: PLR2004 - the first two columns are text
    rows = [_row(context, collector) for collector in collectors]
    return card(
        "Collectors", table(head, rows, "Collectors"), sub="each reports its state every ten seconds", flush=True
    )


def _row(context: Context, collector: CollectorStatus) -> Component:
    report, vitals, now = collector.report, collector.report.vitals, context.source.now()
    silent = collector.state == "silent"
    cells = [
        html.Td(_badge(collector.state)),
        html.Td(html.Div([html.Div(report.name, className="n"), html.Div(_about(report, now), className="s")])),
        *([html.Td(UNKNOWN, className="r") for _ in range(7)] if silent else _numbers(vitals)),
    ]
    return html.Tr(cells)


def _badge(state: State) -> Component:
    word, shape = _BADGES[state]
    return html.Span([html.I(className=f"dot {shape}"), word], className=f"pill {shape}")


def _about(report: Report, now: datetime) -> str:
    age = now - datetime.fromtimestamp(report.started, UTC)
    return f"v{report.version}, started {span(max(age, timedelta()))} ago"


def _numbers(vitals: Vitals) -> list[Component]:
    exports, refused = sum(vitals.exports_per_second.values()), sum(vitals.refused_per_second.values())
    targets = vitals.targets_up + len(vitals.targets_down)
    queue = f"{whole(int(vitals.queue_batches))} ({size(vitals.queue_bytes)})" if vitals.queue_batches else "empty"
    cells: list[tuple[str, str]] = [
        (count(exports), _split(vitals.exports_per_second)),
        (count(refused), _split(vitals.refused_per_second)),
        (queue, f"being received: {size(vitals.receiving_bytes)}"),
        (f"≤ {duration(vitals.commit_p99_seconds)}" if vitals.commit_p99_seconds else UNKNOWN, ""),
        (size(vitals.memory_bytes) if vitals.memory_bytes else UNKNOWN, ""),
        (percent(vitals.cpu_ratio), "of one core"),
        (f"{vitals.targets_up} of {targets}" if targets else "none", ""),
    ]
    return [html.Td(text, className="r", title=title or None) for text, title in cells]


def _split(rates: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {count(rate)}" for name, rate in sorted(rates.items()))


def _problems(context: Context, collectors: Sequence[CollectorStatus]) -> Component:
    rows = [
        html.Tr(
            [
                html.Td(
                    [
                        html.Div(trouble.text, className="n"),
                        html.Div(with_code(f"{collector.report.name}: {trouble.fix}."), className="s"),
                    ],
                    className="wraps",
                ),
                html.Td(day(trouble.since.astimezone(context.view.zone)) if trouble.since else "", className="muted r"),
            ]
        )
        for collector in collectors
        for trouble in collector.troubles
    ]
    return card("To check", table((("What", ""), ("Since", "r")), rows, "What to check"), flush=True)


def _shared(collectors: Sequence[CollectorStatus]) -> Component:
    newest = max(collectors, key=lambda collector: collector.report.seen).report.vitals
    budget = f" of {size(newest.store_budget_bytes)}" if newest.store_budget_bytes else ", without a limit"
    waited = span(timedelta(seconds=newest.spans_waiting_seconds))
    rejected: Counter[str] = Counter()
    for collector in collectors:
        rejected.update(collector.report.vitals.rejected)
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
    head = (("Number", ""), ("Meaning", ""), ("Alert if", ""))
    return card("Meaning of the numbers", table(head, rows, "Meaning of the numbers"), flush=True)


@dataclass(frozen=True, slots=True)
class CollectorProblem:
    text: str
    fix: str
    since: datetime | None = None


@dataclass(frozen=True, slots=True)
class CollectorStatus:
    report: Report
    state: State
    troubles: tuple[CollectorProblem, ...] = ()


def collector_status(report: Report, now: datetime) -> CollectorStatus:
    seen = _moment(report.seen)
    if (now - seen).total_seconds() > SILENT_AFTER:
        text = f"No report for {span(now - seen)}"
        fix = (
            "the process was killed, its machine is gone, or it cannot write to the database; see its log. Agents "
            "buffer unsent data and retry"
        )
        return CollectorStatus(report, "silent", (CollectorProblem(text, fix, seen),))
    failing = tuple(
        CollectorProblem(
            f"{part[:1].upper()}{part[1:]} fails{f': {why}' if why else ''}",
            "the collector retries; see its log",
            _moment(since),
        )
        for part, why, since in report.vitals.failing
    )
    others = (*_clock(seen - now), *_find_problems(report.vitals))
    return CollectorStatus(report, "failing" if failing else "look" if others else "ok", (*failing, *others))


def _clock(ahead: timedelta) -> Iterator[CollectorProblem]:
    if ahead > CLOCK_AHEAD:
        yield CollectorProblem(f"Its clock is {span(ahead)} ahead of this machine's", "synchronize both with NTP")


def _find_problems(vitals: Vitals) -> Iterator[CollectorProblem]:
    if vitals.file_errors:
        fix = "the previous version stays in force; fix the file, it is read again automatically"
        yield CollectorProblem(f"Its file has errors: {'; '.join(vitals.file_errors)}", fix)
    for sender in vitals.greedy:
        fix = f"new ones count as {OTHER}; does it put an id into service.name? `stagelens storage forget` deletes services"
        yield CollectorProblem(f"{sender} named more services within a day than its share", fix)
    for sender, number in vitals.refused.items():
        yield CollectorProblem(f"Refused since the start: {sender} ({count(number)} times)", _OTHER_REFUSAL)
    for code, rate in sorted(vitals.refused_per_second.items()):
        yield CollectorProblem(
            f"{count(rate)} requests/s are rejected with {code}", _REFUSALS.get(code, _OTHER_REFUSAL)
        )
    if vitals.commit_p99_seconds is not None and vitals.commit_p99_seconds > SLOW_COMMIT_SECONDS:
        text = f"The p99 of transactions is about {vitals.commit_p99_seconds:g} s"
        yield CollectorProblem(text, "check the disk and the load of the database")
    for url, why in vitals.targets_down.items():
        yield CollectorProblem(f"{url} cannot be scraped{f': {why}' if why else ''}", "its counters will be read later")
    if timedelta(seconds=vitals.spans_waiting_seconds) > (
        LONG_WAIT if vitals.spans_waiting_bytes > MAX_WAITING else LONGEST_WAIT
    ):
        waited = span(timedelta(seconds=vitals.spans_waiting_seconds))
        text = f"Spans wait for {waited} to become requests ({size(vitals.spans_waiting_bytes)})"
        yield CollectorProblem(text, "more spans arrive than are processed: start another collector")


def excluded_notes(context: Context) -> list[Component]:
    read, cached = context.source.read, context.source.cached
    about = replace(context.selection, model=None, route=None, cold=None)
    probes = cached(read.streams, about, PROBE_DURATION).get(UNTIMED)
    failed = cached(read.streams, replace(about, status=STATUS_ERROR), PROBE_DURATION).get(UNTIMED)
    notes = [_probe_note(probes, failed)] if probes and probes.count else []
    losses = cached(read.streams, replace(about, version=None, status=None), COLLECTOR_LOST)
    return [
        *notes,
        *(
            _loss_note(context, LOSSES[reason], histogram.count)
            for reason, histogram in losses.items()
            if reason in LOSSES
        ),
    ]


def stopped_note(context: Context) -> Component | None:
    stopped = context.source.cached(context.source.read.stopped, context.selection)
    if stopped.empty:
        return None
    last, oldest = stopped.iloc[0], stopped.sort_values("oldest_seconds").iloc[-1]
    name = f"{last['place']} of {last['service']}" if context.service is None else str(last["place"])
    at = clock_or_date(last["at"].to_pydatetime(), context.view)
    head = (
        f"Process {name} stopped sending" if len(stopped) == 1 else f"{whole(len(stopped))} processes stopped sending"
    )
    route, age = f" ({oldest['route']})" if oldest["route"] else "", duration(float(oldest["oldest_seconds"]))
    text = (
        f"{f', the last one ({name})' if len(stopped) > 1 else ''} at {at}: {several(int(stopped['requests'].sum()), 'request')} open, "
        f"the oldest{route} for {age}. Open requests, and those that finished after the last report, may not be counted. "
        "Fix: if it was killed, see its restarts, memory and time limits."
    )
    return html.Div([dot("at_risk"), html.Span([html.B(head), text])], className="quiet")


def _probe_note(probes: Histogram, failed: Histogram | None) -> Component:
    median, number = probes.quantile(0.5), failed.count if failed else 0
    text = f"{several(probes.count, 'health probe')} (p50 {duration(median.value if median else None)}, {whole(number)} failed)"
    fix = with_code(" counted apart and in no other number. `STAGELENS_PROBES=none` counts them as requests.")
    return html.Div(html.Span([html.B(text), *fix]), className="quiet")


def _loss_note(context: Context, loss: Loss, number: int) -> Component:
    message = [html.B("Not counted"), f": {several(number, loss.unit)} {loss.text}. ", *with_code(f"Fix: {loss.fix}. ")]
    more = link("Collectors", href=context.view.link(PLACE), className="link")
    return html.Div([dot("at_risk"), html.Span([*message, more])], className="quiet")


def _losses(context: Context) -> Component | None:
    losses = context.source.cached(
        context.source.read.fleet_counts, replace(context.selection, service=None), COLLECTOR_LOST
    )
    rows = [
        html.Tr(
            [
                html.Td(link(service, href=context.view.link(service_path(service)), className="link")),
                html.Td(f"{several(number, LOSSES[reason].unit)} {LOSSES[reason].text}", className="wraps"),
                html.Td(with_code(LOSSES[reason].fix), className="wraps"),
            ]
        )
        for service, numbers in sorted(losses.items())
        for reason, number in sorted(numbers.items(), key=lambda pair: -pair[1])
        if reason in LOSSES
    ]
    head = (("Service", ""), ("What", ""), ("Fix", ""))
    return card("Not counted", table(head, rows, "Not counted"), sub="in the window", flush=True) if rows else None


def service_quota_line(context: Context) -> Component | None:
    senders = sorted({sender for report in context.source.read.collectors() for sender in report.vitals.greedy})
    if not senders:
        return None
    more_than = f"{senders[0]}{f' and {len(senders) - 1} more' if len(senders) > 1 else ''}"
    message = [
        html.B("Too many services"),
        f": {more_than} named more within a day than their share; new ones count as {OTHER}. ",
    ]
    more = link("More", href=context.view.link("/collectors"), className="link")
    return html.Div([dot("at_risk"), html.Span([*message, more])], className="quiet")


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
