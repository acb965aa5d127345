"""How a collector is by what it has said last: its state, and what to look at, with the cure. Values in, values out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

from dash import html
from dash.development.base_component import Component

from ...collector.server.auth import MAX_SERVICES
from ...core.stages import OTHER
from ...store.collectors import SILENT_AFTER, Report, Vitals
from ..components import dot, link
from ..format import count, size, span
from .page import Context

State = Literal["silent", "failing", "look", "ok"]

# The gravest first.
ORDER: tuple[State, ...] = ("silent", "failing", "look", "ok")
# By then exports wait longer than a client's usual 10 s.
SLOW_COMMIT_SECONDS = 1.0
# Requests are folded within a second or two of their last span, and wait at most a minute or two for a late one.
LONG_WAIT = timedelta(minutes=10)
# A clock that goes wrong by more shifts data into other buckets.
CLOCK_AHEAD = timedelta(seconds=10)
# Why requests are refused, by their HTTP status, and what to do.
_REFUSALS = {
    "401": "they show no token or certificate, or a wrong one: compare the agents' settings with the collector's",
    "403": "their certificate is not on the list: add it under access.certificates",
    "429": "a client is past its rate, or the queue is full: raise the limit, or start another collector",
    "503": "the store does not commit in time: look at the database; or too much waits to be sent on",
    "508": "they were sent on from here and have come back: change one of the forward: sections on their way",
    "413": "requests are too large: send smaller batches, or raise STAGELENS_MAX_BODY",
    "400": "requests cannot be read: the senders' logs say why",
}
_OTHER_REFUSAL = "the senders' logs say why"


@dataclass(frozen=True, slots=True)
class Trouble:
    """One thing that is wrong.

    Args:
        text: What.
        cure: What to do.
        since: Since when, where that is known.
    """

    text: str
    cure: str
    since: datetime | None = None


@dataclass(frozen=True, slots=True)
class Judged:
    """A collector and what there is to say about it.

    Args:
        report: What it said last.
        state: How it is.
        troubles: Why, the gravest first.
    """

    report: Report
    state: State
    troubles: tuple[Trouble, ...] = ()


def judge(report: Report, now: datetime) -> Judged:
    """Say how the collector of *report* is."""
    seen = _moment(report.seen)
    if (now - seen).total_seconds() > SILENT_AFTER:
        text = f"No word for {span(now - seen)}"
        cure = (
            "it was killed, its machine is gone, or it cannot write to the database; its log says which. "
            "Agents keep what they cannot send and try again"
        )
        return Judged(report, "silent", (Trouble(text, cure, seen),))
    failing = tuple(
        Trouble(
            f"{part[:1].upper()}{part[1:]} fails{f': {why}' if why else ''}",
            "it goes on trying; its log says more",
            _moment(since),
        )
        for part, why, since in report.vitals.failing
    )
    others = (*_clock(seen - now), *_looks(report.vitals))
    return Judged(report, "failing" if failing else "look" if others else "ok", (*failing, *others))


def _clock(ahead: timedelta) -> Iterator[Trouble]:
    if ahead > CLOCK_AHEAD:
        yield Trouble(f"Its clock is {span(ahead)} ahead of this machine's", "let both follow NTP")


def _looks(vitals: Vitals) -> Iterator[Trouble]:
    if vitals.file_errors:
        cure = "what was read before stays in force; mend the file, it is read again by itself"
        yield Trouble(f"Its file has mistakes: {'; '.join(vitals.file_errors)}", cure)
    for sender in vitals.greedy:
        fix = f"new ones count as {OTHER}; does it put an id into service.name? `stagelens storage forget` deletes services"
        yield Trouble(f"{sender} named more than {MAX_SERVICES} services within a day", fix)
    for code, rate in sorted(vitals.refused_per_second.items()):
        yield Trouble(f"{count(rate)} requests/s are answered with {code}", _REFUSALS.get(code, _OTHER_REFUSAL))
    if vitals.commit_p99_seconds is not None and vitals.commit_p99_seconds > SLOW_COMMIT_SECONDS:
        text = f"One transaction in a hundred takes about {vitals.commit_p99_seconds:g} s"
        yield Trouble(text, "look at the database's disk and at what else it does")
    for url, why in vitals.targets_down.items():
        yield Trouble(f"{url} cannot be scraped{f': {why}' if why else ''}", "what it counts meanwhile is read later")
    for name, why in vitals.destinations_down.items():
        cure = "what is received waits for it, up to the most_waiting of the collector's file"
        yield Trouble(f"Nothing can be sent on to {name}: {why}", cure)
    for name, bodies in vitals.destinations_lost.items():
        cure = "the collector's log has its words; stagelens_collector_forward_dropped_total counts on"
        yield Trouble(f"{name} did not get {count(bodies)} of the requests that were received", cure)
    if timedelta(seconds=vitals.spans_waiting_seconds) > LONG_WAIT:
        waited = span(timedelta(seconds=vitals.spans_waiting_seconds))
        text = f"Spans wait for {waited} to become requests ({size(vitals.spans_waiting_bytes)})"
        yield Trouble(text, "more come than are folded: start another collector")


def greedy_line(context: Context) -> Component | None:
    """Return one line that names who has named more services than its share lately; None where nobody has."""
    senders = sorted({each for report in context.source.read.collectors() for each in report.vitals.greedy})
    if not senders:
        return None
    more_than = f"{senders[0]}{f' and {len(senders) - 1} more' if len(senders) > 1 else ''}"
    said = [
        html.B("Too many services"),
        f": {more_than} named more than {MAX_SERVICES} within a day; new ones count as {OTHER}. ",
    ]
    more = link("More", href=context.view.link("/collectors"), className="link")
    return html.Div([dot("at_risk"), html.Span([*said, more])], className="quiet")


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
