"""Advice with its data: measured facts of a service, reachable latency, affected versions, and user marks.

A mark (dismissed, snoozed, done) is an event in the store; the newest mark of a piece of advice is in effect.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Literal

from dash import html
from dash.development.base_component import Component

from ...core.confidence import has_enough_samples
from ...core.histogram import Histogram
from ...core.names import FAILED_CALL, TOKENS, TOKENS_OUT
from ...core.stages import label
from ...store import Selection
from ..ui.components import attributes
from ..ui.format import duration, span
from ..view import View
from .advice_rules import MIN_GAIN, Facts, Finding, findings
from .comparison import window_name
from .measures import measure, measures_in_window
from .page import Context, records
from .spending import mean_stages

SNOOZE = timedelta(days=7)
_KEPT = timedelta(days=400)
_SNOOZED = "snoozed until "
# Shortest time range for a comparison of before and after.
_SHORTEST = timedelta(minutes=10)
State = Literal["open", "dismissed", "snoozed", "done"]
# The fleet's list contains one finding per service, with at least this share of the ranked quantity.
WORTH = 0.2
# Maximum number of what-if queries.
MOST = 20
# Ratio from which a stage counts as slow in only one version or route.
_ALONE = 2.0
# If limiting a stage to its median gains less, the percentile is not high because of some requests only. [ratio]
_EVEN = 0.01
_MAX_ROUTES = 3


def advice_for_service(context: Context, rank: str, most: int | None = None) -> list[Advice]:
    """Return the advice for the service of *context*, largest gain first; advice without gain is left out.

    If *most* is given, only that number of findings with the largest share of the ranked quantity are evaluated.
    """
    dealt = marks(context)
    found = [_advice(context, each, rank, dealt) for each in findings(facts_of(context), rank)[:most]]
    return _worthwhile(found, rank)


def _worthwhile(found: Iterable[Advice], rank: str) -> list[Advice]:
    return sorted((each for each in found if each.ceiling(rank) >= MIN_GAIN), key=lambda each: each.order(rank))


def advice_for_fleet(context: Context, rank: str) -> tuple[list[Advice], int]:
    """Return the largest piece of advice of each service, largest first, and the number of services with advice."""
    tops = _largest_findings(context, rank)
    dealt = marks(context)
    found = [_advice(context.of(each.facts.service), each, rank, dealt) for each in tops[:MOST]]
    return _worthwhile(found, rank), len(tops)


def quantile_of(rank: str) -> float:
    """Return the percentile that *rank* needs; for cost, which is a mean, the median."""
    return 0.99 if rank == "p99" else 0.5


def advice_count(context: Context) -> int:
    """Return the number of services with large, unmarked advice for p99, without what-if queries."""
    dealt, now = marks(context), context.view.now
    return sum(
        not _hidden(dealt.get((each.facts.service, each.key)), now) for each in _largest_findings(context, "p99")
    )


def facts_of(context: Context) -> Facts:
    """Return the measured facts of the service of *context*."""
    source, selection = context.source, context.selection
    failed = source.ask(source.read.streams, selection, FAILED_CALL)
    tokens = source.ask(source.read.streams, selection, TOKENS).get(TOKENS_OUT)
    return Facts(
        context.service or "",
        measure(source, selection),
        mean_stages(context),
        sum(each.count for each in failed.values()),
        _lengths(tokens) if tokens else None,
    )


def scope_notes(context: Context, finding: Finding) -> list[str]:
    """Return notes on the single version or route in which the stage is slow at p99."""
    found = []
    for dimension, values in (("version", _versions(context)), ("route", _routes(context))):
        times = {
            value: _stage_p99(context, replace(context.selection, **{dimension: value}), finding.stage)
            for value in values
        }
        known = sorted((seconds, value) for value, seconds in times.items() if seconds is not None)
        if len(known) > 1 and known[-1][0] >= _ALONE * known[-2][0]:
            (less, other), (most, worst) = known[-2:]
            name = f"p99 of {label(finding.stage)} itself"
            found.append(f"Only {dimension} {worst}: {name} is {duration(most)}, against {duration(less)} on {other}.")
    return found


def _advice(context: Context, finding: Finding, rank: str, dealt: Mapping[tuple[str, str], Mark]) -> Advice:
    mark = dealt.get((finding.facts.service, finding.key))
    return Advice(finding, _reachable_latency(context, finding, quantile_of(rank)), mark)


def _reachable_latency(context: Context, finding: Finding, quantile: float) -> ReachableLatency | None:
    if not has_enough_samples(finding.facts.measures.requests, quantile):
        return None
    frame = context.source.ask(context.source.read.whatif, context.selection, finding.stage, (quantile,))
    if not len(frame):
        return None
    before, usual, without = (
        float(frame[name].iloc[0]) for name in ("before_seconds", "after_seconds", "ceiling_seconds")
    )
    return ReachableLatency("p50" if quantile == 0.5 else "p99", before, usual, without)  # noqa: PLR2004 - the median


def _largest_findings(context: Context, rank: str) -> list[Finding]:
    """Return the largest finding of each service if its gain is at least `WORTH`, largest first."""
    found: list[Finding] = []
    for service, seen in measures_in_window(context).items():
        has_enough = has_enough_samples(seen.measures.requests, quantile_of(rank))
        own = findings(Facts(service, seen.measures), rank) if has_enough else []
        if own:
            found.append(own[0])
    worth = [each for each in found if each.expected(rank) >= WORTH]
    return sorted(worth, key=lambda each: (-each.expected(rank), each.facts.service))


def _hidden(mark: Mark | None, now: datetime) -> bool:
    return mark is not None and mark.hides(now)


def _lengths(tokens: Histogram) -> tuple[float, float] | None:
    if not has_enough_samples(tokens.count, 0.99):
        return None
    median, tail = tokens.quantile(0.5), tokens.quantile(0.99)
    return (median.value, tail.value) if median and tail else None


def _versions(context: Context) -> list[str]:
    rows = context.versions
    if "v" in context.view.part or rows.empty:
        return []
    return [str(each) for each in rows.loc[rows["requests"] > 0, "version"].tail(2)]


def _routes(context: Context) -> list[str]:
    """Return the routes with the most requests."""
    found = context.source.ask(context.source.read.dimensions, context.selection).get("route", {})
    return list(found)[:_MAX_ROUTES]


def _stage_p99(context: Context, selection: Selection, stage: str) -> float | None:
    """Return p99 of the own time of *stage*; at p99 of the latency another stage may be slow."""
    spent = context.source.ask(context.source.read.stage_latency, selection).get(stage)
    found = spent.quantile(0.99) if spent is not None and has_enough_samples(spent.count, 0.99) else None
    return found.value if found else None


@dataclass(frozen=True, slots=True)
class Mark:
    """Newest user mark of a piece of advice.

    Args:
        state: State set by the user.
        at: Time of the mark.
        until: End of a snooze; None for other states.
    """

    state: State
    at: datetime
    until: datetime | None = None

    def hides(self, now: datetime) -> bool:
        """Return whether the mark hides the advice at the time *now*."""
        return self.state in ("dismissed", "done") or (self.until is not None and now < self.until)


def marks(context: Context) -> dict[tuple[str, str], Mark]:
    """Return the newest marks, by service and key of the advice."""
    # Rounded to the day, so that the query can be cached per revision.
    today = context.view.now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    read = context.source.read
    found = context.source.ask(read.events, today - _KEPT, today + timedelta(days=2), kind="advice")
    newest: dict[tuple[str, str], Mark] = {}
    for row in records(found):
        newest.setdefault((str(row["service"]), str(row["key"])), _mark(str(row["text"]), row["at"].to_pydatetime()))
    return newest


def mark_buttons(finding: Finding, mark: Mark | None, now: datetime) -> Component:
    """Return the buttons that dismiss, snooze or complete *finding*, or reopen it."""
    name = f"{finding.words[0]}, {finding.facts.service}"
    if mark is not None and mark.hides(now):
        return html.Div([_button("Show again", "open", finding, name)], className="acts")
    until = (now + SNOOZE).astimezone(UTC).replace(second=0, microsecond=0).isoformat()
    made = [
        _button("Done", "done", finding, name),
        _button(f"Snooze {span(SNOOZE)}", f"{_SNOOZED}{until}", finding, name),
        _button("Dismiss", "dismissed", finding, name),
    ]
    return html.Div(made, className="acts")


def before_and_after(view: View, service: str, mark: Mark) -> str:
    """Return the address of the comparison of equal times before and after *mark*, at most as long as the window."""
    length = min(max(view.now - mark.at, _SHORTEST), view.end - view.start)
    before, after = window_name(mark.at - length, mark.at), window_name(mark.at, mark.at + length)
    return view.link("/compare", svc=service, a=before, b=after, **view.part_of_each_version)


def _mark(text: str, at: datetime) -> Mark:
    if text.startswith(_SNOOZED):
        try:
            until = datetime.fromisoformat(text.removeprefix(_SNOOZED))
        except ValueError:
            return Mark("open", at)
        return Mark("snoozed", at, until if until.tzinfo else until.replace(tzinfo=UTC))
    return Mark(text, at) if text in ("dismissed", "done") else Mark("open", at)


def _button(words: str, text: str, finding: Finding, name: str) -> Component:
    event = {"service": finding.facts.service, "kind": "advice", "key": finding.key, "text": text}
    said = {"data-post": json.dumps(event), "aria-label": f"{words}: {name}"}
    return html.Button(words, className="btn", type="button", **attributes(said))


@dataclass(frozen=True, slots=True)
class ReachableLatency:
    """Reachable latency at one percentile.

    Args:
        name: Name of the percentile: `p99`.
        before: Measured latency. [seconds]
        usual: Latency with the stage limited to its median in every request. [seconds]
        without: Latency without the stage, the lower bound. [seconds]
    """

    name: str
    before: float
    usual: float
    without: float

    @property
    def usual_gain(self) -> float:
        """Relative gain if no request spends more than the median time in the stage [ratio]."""
        return 1 - self.usual / self.before if self.before else 0.0

    @property
    def ceiling(self) -> float:
        """Largest possible relative gain [ratio]."""
        return 1 - self.without / self.before if self.before else 0.0

    @property
    def is_uneven(self) -> bool:
        """Whether limiting the stage to its median lowers the percentile; if not, only a faster stage lowers it."""
        return self.usual_gain > _EVEN

    @property
    def gain(self) -> float:
        """Relative gain with the stage limited to its median; if that has no effect, with the stage removed [ratio]."""
        return self.usual_gain if self.is_uneven else self.ceiling


@dataclass(frozen=True, slots=True)
class Advice:
    """Finding with its reachable latency and user mark.

    Args:
        finding: Finding on which the advice is based.
        reach: Reachable latency; None with too few requests for the percentile.
        mark: Newest user mark; None without one.
    """

    finding: Finding
    reach: ReachableLatency | None
    mark: Mark | None

    def gain(self, rank: str) -> float:
        """Return the expected gain of the quantity *rank* as a ratio."""
        return self.finding.weight(rank) if rank == "cost" or self.reach is None else self.reach.gain

    def ceiling(self, rank: str) -> float:
        """Return the upper bound of the gain of the quantity *rank* as a ratio."""
        return self.finding.weight(rank) if rank == "cost" or self.reach is None else self.reach.ceiling

    def order(self, rank: str) -> tuple[bool, float]:
        """Return the sort key: first stages that are long only for some requests, then by largest gain."""
        uneven = rank != "cost" and self.reach is not None and self.reach.is_uneven
        return not uneven, -self.gain(rank)
