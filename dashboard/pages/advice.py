"""Advice page: optimizations that apply to a service or the fleet, their evidence and the reachable latency.

The rules are in `analysis.advice`. This module reads the facts of a service, and the users' marks (dismissed, snoozed, done), which
are events in the store; the newest mark of a piece of advice is in effect.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from dash import html
from dash.development.base_component import Component

from ...analysis.advice import (
    MIN_GAIN,
    RANKS,
    Advice,
    Facts,
    Mark,
    Option,
    ReachableLatency,
    StageFinding,
    findings,
    largest_findings,
    quantile_of,
    replica_advice,
    slow_alone,
    worthwhile,
)
from ...analysis.breakdown import share_of
from ...analysis.costs import MILLION
from ...analysis.profile import functions, main_function
from ...core.histogram import has_enough_samples, samples_needed, value_at
from ...core.names import FAILED_CALL, TOKENS, TOKENS_OUT
from ...core.stages import label
from ...store import Selection
from ..ui.components import Node, attributes, card, link, link_tabs, missing_legend, pill, stage_bar, swatch
from ..ui.format import MINUS, count, day, duration, money, percent, percentile, several, span, whole
from ..view import View, service_path
from .across_services import called_sentence
from .comparison import window_name
from .measures import measure, measures_in_window
from .page import Context, Page, empty_page_card, panel, records
from .replicas import slow_replica_of, slow_sentence
from .service_code import option_to_copy, source_link
from .service_frame import service_page
from .spending import mean_stages, spending
from .tokens_charts import first_token_measures, measures_of_window, pace_measures

_WORDS = {"dismissed": "Dismissed", "snoozed": "Snoozed", "done": "Done"}
_MATRIX = (
    ("gain", "Largest gain"),
    ("accuracy", "Accuracy"),
    ("complexity", "Complexity"),
    ("hardware", "Hardware"),
    ("reversible", "Reversible"),
    ("source", "Source"),
)
_NAMES = {"p99": "p99", "p50": "p50", "ttft": "TTFT p99", "tpot": "TPOT p99", "cost": "Cost"}
_TOKEN_RANKS = ("ttft", "tpot")
# Families whose texts need more than the measures of the latency, which cost queries.
_NEEDS_FACTS = {"decode", "dependency"}
# Maximum number of cards with notes on version and route, because each note needs queries.
_MAX_NOTED = 3
_MAX_ROUTES = 3
# Maximum number of what-if queries.
MOST = 20
# A prediction above what the breakdown suggests, by more than this factor, is explained. [ratio]
_ALIKE = 1.1
SNOOZE = timedelta(days=7)
_MAX_AGE = timedelta(days=400)
_SNOOZED = "snoozed until "
# Shortest time range for a comparison of before and after.
_SHORTEST = timedelta(minutes=10)


def render(context: Context) -> Page:
    if context.service and context.view.parts[:1] == ("s",):
        return service_page(context, "advice", lambda: _of_service(context))
    if context.service:
        trail: list[tuple[str, str | None]] = [("Advice", context.view.link("/advice")), (context.service, None)]
        return Page("Advice · Stagelens", trail, [_head(context, ""), *_of_service(context, bare=True)], "/advice")
    return Page("Advice · Stagelens", [("Advice", None)], _of_all(context), "/advice")


def _of_service(context: Context, *, bare: bool = False) -> list[Node]:
    rank = context.view.choice("rank", *RANKS)
    facts, quantile = facts_of(context, rank), quantile_of(rank)
    requests = facts.measures.requests
    above: list[Node] = [] if bare else [_rank_tabs(context)]
    above.append(panel("The slow replica", lambda: _slow_replica_card(context)))
    if not has_enough_samples(requests, quantile):
        return [*above, _too_few(context, requests, facts.name(percentile(quantile)), quantile)]
    advice_entries = advice_for_service(context, rank)
    cards: list[Node] = [_summary(advice_entries, rank)] if advice_entries and rank != "tpot" else []
    for index, advice in enumerate(_shown(context, advice_entries)):
        noted = index < _MAX_NOTED
        notes = scope_notes(context, advice.finding.stage) if noted else []
        code = code_note(context, advice.finding.stage, quantile) if noted and rank not in _TOKEN_RANKS else None
        cards.append(
            panel(
                advice.finding.stage,
                lambda advice_entry=advice, notes=notes, code=code: advice_card(
                    context, advice_entry, rank, notes, code, alone=True
                ),
            )
        )
    if not advice_entries:
        cards.append(empty_page_card("No change would save 3 % or more", "Every stage is below this limit."))
    return [*above, *cards, _hidden_note(context, advice_entries)]


def _slow_replica_card(context: Context) -> Component | None:
    slow, view = slow_replica_of(context), context.view
    if slow is None:
        return None
    href = view.link(service_path(context.service or "", "replicas"), **view.scope)
    content = [
        html.Div([pill("Replica", "out")], className="m"),
        html.H2(replica_advice(slow)),
        html.P([slow_sentence(context, slow), " ", link("All replicas →", href=href, className="link")], className="x"),
    ]
    return html.Section(html.Div(html.Div(content, className="say"), className="both"), className="card adv")


def _summary(advice: Sequence[Advice], rank: str) -> Component:
    top = advice[0]
    stage, gain = label(top.finding.stage), percent(top.gain(rank))
    rest = f"{len(advice)} stages have advice" if len(advice) > 1 else "no other stage has advice"
    if top.is_uneven(rank):
        text = f"{stage} first: {_NAMES[rank]} falls by {gain} if no request spends more than the median in it; {rest}."
    else:
        whole = "the cost" if rank == "cost" else _NAMES[rank]
        text = f"{stage} first: at most {gain} of {whole} can be saved; {rest}."
    return html.Div(text, className="b")


def _of_all(context: Context) -> list[Node]:
    rank = context.view.choice("rank", *RANKS)
    if not measures_in_window(context):
        return [
            _head(context, ""),
            empty_page_card("No request in this window", "Advice is based on the requests of the window."),
        ]
    advice_entries, candidates = advice_for_fleet(context, rank)
    by_title: dict[str, list[Advice]] = {}
    for advice in _shown(context, advice_entries):
        by_title.setdefault(advice.finding.title, []).append(advice)
    cards: list[Node] = [
        panel(title, lambda some=some: _fleet_card(context, some, rank)) for title, some in by_title.items()
    ]
    if not advice_entries:
        ranked = {"p99": "p99, and more than of p50", "cost": "the busy time"}.get(rank, _NAMES[rank])
        text = f"No stage takes 20 % of {ranked} in any service. The page of each service lists smaller findings."
        cards.append(empty_page_card("No large finding", text))
    sub = f"The largest finding of {len(advice_entries)} service{'s' * (len(advice_entries) != 1)}"
    if candidates > MOST:
        sub += f", out of {candidates} with findings"
    sub += _left_out(context, rank)
    return [_head(context, sub), *cards, _hidden_note(context, advice_entries)]


def _left_out(context: Context, rank: str) -> str:
    seen = measures_in_window(context).values()
    few = sum(not has_enough_samples(measures.measures.requests, quantile_of(rank)) for measures in seen)
    return f"; {few} of {len(seen)} have too few requests in this window" if few else ""


def _head(context: Context, sub: str) -> Component:
    title = html.Div([html.H1("Advice"), html.P(sub or "Ordered by largest possible gain", className="sub")])
    return html.Div([title, html.Span(className="grow"), _rank_tabs(context)], className="phead")


def _rank_tabs(context: Context) -> Component:
    rank = context.view.choice("rank", *RANKS)
    seen = measures_in_window(context)
    mine = [seen[context.service]] if context.service in seen else [] if context.service else seen.values()
    shown = [
        choice
        for choice in RANKS
        if choice == rank or choice not in _TOKEN_RANKS or any(one.kind == "llm" for one in mine)
    ]
    options = {
        choice: (_NAMES[choice], context.view.here(rank=None if choice == RANKS[0] else choice)) for choice in shown
    }
    return html.Div(["Ranked by", link_tabs("Ranked by", options, rank)], className="pick ranked")


def _too_few(context: Context, requests: int, name: str, quantile: float) -> Component:
    actions = [link("Last 24 h", href=context.view.here(from_="now-24h", to=None), className="btn")]
    if has_enough_samples(requests, 0.5):
        actions.insert(0, link("Rank by p50", href=context.view.here(rank="p50"), className="btn pri"))
    text = f"{whole(requests)} in this window; {name} needs {whole(samples_needed(quantile))}."
    return empty_page_card(f"Too few requests to advise on {name}", text, actions=actions)


def _shows_all(context: Context) -> bool:
    return context.view.text("kind") == "all"


def _shown(context: Context, advice: Sequence[Advice]) -> list[Advice]:
    return [
        advice_entry for advice_entry in advice if _shows_all(context) or not advice_entry.is_hidden(context.view.now)
    ]


def _hidden_note(context: Context, advice: Sequence[Advice]) -> Node:
    view = context.view
    out = [advice_entry for advice_entry in advice if advice_entry.is_hidden(view.now)]
    done = _done(context, {(advice_entry.finding.facts.service, advice_entry.finding.key) for advice_entry in out})
    notes: list[Node] = []
    if out:
        text = f"{len(out)} dismissed, snoozed or done"
        href, words = (view.here(kind=None), "Hide") if _shows_all(context) else (view.here(kind="all"), "Show")
        notes.append(html.Span([f"{text}. ", link(words, href=href, className="link")]))
    for service, key, mark in done:
        href = before_and_after(view, service, mark)
        notes.append(html.Span([f"Done and resolved: {key.partition(':')[2]} of {service}. ", link("Compare before and after →", href=href, className="link")]))  # fmt: skip
    return html.Div(notes, className="quiet stack") if notes else None


def _done(context: Context, still: set[tuple[str, str]]) -> list[tuple[str, str, Mark]]:
    done = [
        (service, key, mark)
        for (service, key), mark in marks(context).items()
        if mark.state == "done" and (service, key) not in still and context.service in (None, service)
    ]
    return sorted(
        (mark_row for mark_row in done if mark_row[2].at >= context.view.start),
        key=lambda mark_row: mark_row[2].at,
        reverse=True,
    )


def advice_card(
    context: Context, advice: Advice, rank: str, notes: Sequence[str] = (), code: Node = None, *, alone: bool
) -> Component:
    finding = advice.finding
    title, why = finding_text(finding)
    service = finding.facts.service
    named = None if alone else _service_link(context, service)
    why_with_notes = html.P([why, *[f" {note}" for note in notes]], className="x")
    content = _card_content(finding, [named, _mark_badge(context, advice)], [why_with_notes, code])
    return _card(
        [content, _numbers(context, advice, rank)], mark_buttons(context, advice), finding, f"{title}, {service}"
    )


def _fleet_card(context: Context, advice_entries: Sequence[Advice], rank: str) -> Component:
    finding = advice_entries[0].finding
    if len(advice_entries) == 1:
        return advice_card(context.of(finding.facts.service), advice_entries[0], rank, alone=False)
    content = _card_content(finding, [html.B(several(len(advice_entries), "service"))], [])
    rows: list[Node] = []
    for advice in advice_entries:
        service_context = context.of(advice.finding.facts.service)
        words = [
            _service_link(service_context, advice.finding.facts.service),
            html.Span(shares(advice.finding), className="muted"),
        ]
        saved = percent(advice.gain(rank)) if rank == "cost" else _reached(advice)
        rows.append(
            html.Li(
                [
                    html.Span([*words, _mark_badge(service_context, advice)], className="say"),
                    saved,
                    mark_buttons(service_context, advice),
                ]
            )
        )
    return _card([html.Div([content, html.Ul(rows, className="helps")], className="say")], None, finding, finding.title)


def _service_link(context: Context, service: str) -> Component:
    return link(service, href=context.view.link(service_path(service, "advice")), className="b")


def _card_content(finding: StageFinding, marks: Sequence[Node], reasons: Sequence[Node]) -> Component:
    head = [swatch(finding.stage), label(finding.stage), marks[0], pill(finding.family.name, "out"), *marks[1:]]
    options = html.Div([_option_details(option) for option in finding.family.options], className="opts")
    return html.Div([html.Div(head, className="m"), html.H2(finding.title), *reasons, options], className="say")


def _card(body: Sequence[Node], foot: Node, finding: StageFinding, name: str) -> Component:
    about = attributes({"data-advice": finding.key, "aria-label": name})
    return html.Section([html.Div(list(body), className="both"), foot], className="card adv", **about)


def top_advice(context: Context, most: int, size: str = "c12", rank: str = RANKS[0]) -> Component | None:
    view = context.view
    advice = [
        advice_entry for advice_entry in advice_for_service(context, rank, most) if not advice_entry.is_hidden(view.now)
    ]
    if not advice:
        return None
    whole = view.link(
        service_path(context.service or "", "advice"), rank=rank if rank in _TOKEN_RANKS else None, **view.scope
    )
    rows = [_advice_line(advice_entry, whole) for advice_entry in advice]
    more = link("All advice →", href=whole, className="link")
    title = f"Ways to lower {rank.upper()}" if rank in _TOKEN_RANKS else "Ways to fix this"
    return card(title, html.Ul(rows, className="helps"), sub=f"what {_NAMES[rank]} could reach", tools=more, size=size)


def _advice_line(advice: Advice, href: str) -> Component:
    title, why = finding_text(advice.finding)
    text = html.Span([link(title, href=href, className="b"), html.Span(why, className="muted")], className="say")
    return html.Li([swatch(advice.finding.stage), text, _reached(advice)])


def _reached(advice: Advice) -> Node:
    reach = advice.reach
    if reach is None:
        return None
    if not reach.is_uneven:
        return html.Span(["at most ", html.B(f"{MINUS}{duration(reach.before - reach.without)}")], className="num")
    return html.Span([duration(reach.before), " → ", html.B(duration(reach.after))], className="num")


def _numbers(context: Context, advice: Advice, rank: str) -> Component:
    finding, view = advice.finding, context.view
    measures, service = finding.facts.measures, service_path(finding.facts.service)
    parts = _cost_numbers(context, advice) if rank == "cost" else _reachable(advice)
    if rank in _TOKEN_RANKS:
        where, href = "the tokens page", view.link(f"{service}/tokens", **view.scope)
    else:
        where, href = "the breakdown", view.link(service, p="50" if rank == "p50" else None, **view.scope)
    bar = stage_bar(measures.tail_stages if quantile_of(rank) > 0.5 else measures.median_stages)  # noqa: PLR2004 - the median
    return html.Div(
        [
            *parts,
            *((bar, missing_legend(bar)) if rank != "tpot" else ()),
            link(f"Evidence: {where} →", href=href, className="link"),
        ],
        className="reach",
    )


def _reachable(advice: Advice) -> list[Node]:
    """Return the percentile if the stage never exceeds its median, and the largest possible gain."""
    stage, reach, facts = advice.finding.stage, advice.reach, advice.finding.facts
    if reach is None:
        return []
    without = f"if {label(stage)} took no time"
    if not reach.is_uneven:
        text = f"{MINUS}{percent(reach.ceiling)}: at most, {without}"
        return [
            html.Div(f"{reach.name} could fall by", className="l"),
            html.Div(_reached(advice), className="to"),
            html.Div(text, className="muted"),
        ]
    notes = [f"{MINUS}{percent(reach.gain)} if no request exceeded the median of the stage"]
    allowed = reach.before - facts.tail(stage) + facts.median(stage)
    if not facts.metric and reach.usual > allowed * _ALIKE:
        notes.append(f"not {duration(allowed)}, because other requests would then be the slowest")
    notes.append(f"{duration(reach.without)} at best, {without}")
    head = f"{reach.name} could reach" + (", at best" if facts.metric else "")
    return [
        html.Div(head, className="l"),
        html.Div(_reached(advice), className="to"),
        *[html.Div(note, className="muted") for note in notes],
    ]


def _cost_numbers(context: Context, advice: Advice) -> list[Node]:
    share = advice.finding.weight("cost")
    spent = spending(context)
    saved = money(share * spent.each * MILLION, spent.currency) if spent and spent.each is not None else None
    return [
        html.Div("could save, at best", className="l"),
        html.Div(html.B(saved or percent(share)), className="to num"),
        html.Div(f"of {money(spent.each * MILLION, spent.currency)} per 1 M requests, {percent(share)}" if saved and spent and spent.each else "of the busy time; no price is configured", className="muted"),
    ]  # fmt: skip


def _option_details(option: Option) -> Component:
    rows: list[Component] = []
    for name, words in _MATRIX:
        rows += [html.Dt(words), html.Dd(str(getattr(option, name)))]
    return html.Details(
        [html.Summary(option.name), html.Div([html.P(option.does), html.Dl(rows, className="matrix")])], className="opt"
    )


def _mark_badge(context: Context, advice: Advice) -> Node:
    mark = advice.mark
    if mark is None or not advice.is_hidden(context.view.now):
        return None
    if mark.until is not None:
        return pill(f"Snoozed until {day(mark.until.astimezone(context.view.zone))}")
    at = day(mark.at.astimezone(context.view.zone))
    if mark.state != "done":
        return pill(f"{_WORDS[mark.state]} {at}")
    href = before_and_after(context.view, advice.finding.facts.service, mark)
    return html.Span([pill(f"Done {at}", "good"), link("Compare before and after →", href=href, className="link")], className="nm")  # fmt: skip


def finding_text(finding: StageFinding) -> tuple[str, str]:
    """Return the title of *finding* in the imperative, and the reason with its numbers."""
    facts, more, tokens = finding.facts, finding.more, finding.facts.response_tokens
    values = {
        "stage": label(finding.stage),
        "shares": shares(finding),
        "pace": f"{duration(facts.measures.p50)} at p50 and {duration(facts.measures.p99)} at p99",
        "more": duration(more),
        "tokens": f"responses have {count(tokens[0])} tokens at p50 and {count(tokens[1])} at p99" if tokens else "",
        "calls": f" {facts.called}" if facts.called else "",
        "failed_calls": f" {count(facts.failed_calls)} calls failed in the window." if facts.failed_calls else "",
        "for_some": f", {duration(more)} longer for some requests" if more else ", similar for every request",
    }
    return finding.title, finding.family.causes[finding.cause]["reason"].format(**values)


def shares(finding: StageFinding) -> str:
    """Return the share of the stage at both percentiles: `63 % of p99 (138 ms) and 4 % of p50 (2.1 ms)`."""
    facts, stage = finding.facts, finding.stage
    measured = (("p99", facts.measures.p99, facts.tail(stage)), ("p50", facts.measures.p50, facts.median(stage)))
    return " and ".join(
        f"{percent(seconds / whole)} of {facts.name(name)} ({duration(seconds)})"
        for name, whole, seconds in measured
        if whole
    )


def advice_for_service(context: Context, rank: str, most: int | None = None) -> list[Advice]:
    """Return the advice for the service of *context*, largest gain first; advice without gain is left out.

    If *most* is given, only that number of findings with the largest share of the ranked quantity are evaluated.
    """
    dealt, facts = marks(context), facts_of(context, rank)
    return worthwhile((_advice(context, finding, rank, dealt) for finding in findings(facts, rank)[:most]), rank)


def advice_for_fleet(context: Context, rank: str) -> tuple[list[Advice], int]:
    tops, dealt = _largest_findings(context, rank), marks(context)
    advice: list[Advice] = []
    for top in tops[:MOST]:
        service_context = context.of(top.facts.service)
        # From the facts that decide the title, so that it is the title on the page of the service.
        needed = rank == "cost" or top.family.key in _NEEDS_FACTS
        all_findings = findings(facts_of(service_context, rank) if needed else top.facts, rank)
        advice += [_advice(service_context, finding, rank, dealt) for finding in all_findings[:1]]
    return worthwhile(advice, rank), len(tops)


def advice_count(context: Context) -> int:
    dealt = marks(context)
    marks_of_findings = [
        dealt.get((finding.facts.service, finding.key)) for finding in _largest_findings(context, "p99")
    ]
    return sum(mark is None or not mark.hides(context.view.now) for mark in marks_of_findings)


def _largest_findings(context: Context, rank: str) -> list[StageFinding]:
    seen = measures_in_window(context)
    if rank in _TOKEN_RANKS:
        streaming = [service for service, measures in seen.items() if measures.kind == "llm"][:MOST]
        return largest_findings((facts_of(context.of(service), rank) for service in streaming), rank)
    return largest_findings((Facts(service, measures.measures) for service, measures in seen.items()), rank)


def facts_of(context: Context, rank: str = RANKS[0]) -> Facts:
    source, selection, service = context.source, context.selection, context.service or ""
    failed = source.cached(source.read.streams, selection, FAILED_CALL)
    failures = sum(histogram.count for histogram in failed.values())
    if rank in _TOKEN_RANKS:
        tokens = measures_of_window(context)
        measures = first_token_measures(context, tokens) if rank == "ttft" else pace_measures(tokens)
        return Facts(service, measures, failed_calls=failures, metric="TTFT" if rank == "ttft" else "TPOT")
    tokens = source.cached(source.read.streams, selection, TOKENS).get(TOKENS_OUT)
    median, tail = (value_at(tokens, quantile) if tokens else None for quantile in (0.5, 0.99))
    lengths = None if median is None or tail is None else (median, tail)
    measures = measure(source, selection)
    called = called_sentence(context, 0.99) if share_of(measures.tail_stages, "dependency") >= MIN_GAIN else ""
    return Facts(service, measures, mean_stages(context), failures, lengths, called=called)


def _advice(context: Context, finding: StageFinding, rank: str, dealt: Mapping[tuple[str, str], Mark]) -> Advice:
    reach = None if rank == "tpot" else _reachable_latency(context, finding, quantile_of(rank))
    return Advice(finding, reach, dealt.get((finding.facts.service, finding.key)))


def _reachable_latency(context: Context, finding: StageFinding, quantile: float) -> ReachableLatency | None:
    if finding.facts.metric:
        return ReachableLatency.within(finding, quantile)
    frame = context.source.cached(context.source.read.whatif, context.selection, finding.stage, (quantile,))
    if not len(frame):
        return None
    return ReachableLatency.within(
        finding, quantile, float(frame["after_seconds"].iloc[0]), float(frame["ceiling_seconds"].iloc[0])
    )


def scope_notes(context: Context, stage: str) -> list[str]:
    unknown = []
    for dimension, values in (("version", _versions(context)), ("route", _routes(context))):
        seconds = {
            value: _stage_p99(context, replace(context.selection, **{dimension: value}), stage) for value in values
        }
        if alone := slow_alone(seconds):
            slow, next_ = (duration(seconds[value]) for value in alone)
            unknown.append(
                f"Only in {dimension} {alone[0]}: the p99 of {label(stage)} is {slow}, compared with {next_} in {alone[1]}."
            )
    return unknown


def code_note(context: Context, stage: str, quantile: float) -> Component | None:
    bands = context.source.cached(context.source.read.profile, context.selection, (0.5, quantile))
    if not bands:
        return None
    seconds = bands[1].stages.get(stage, 0.0)
    cause = main_function(
        [function for function in functions(bands[1], bands[0]) if function.stage == stage], seconds * 1e3
    )
    if cause is None:
        return None
    (top, share), view = cause, context.view
    at = f" has {percent(min(share, 1.0))} of it at {percentile(quantile)}: {duration(share * seconds)}. "
    option = option_to_copy(top.stage_option, f"advice-option-{stage}")
    every = link("All functions →", href=view.link(service_path(context.service or ""), **view.scope), className="link")
    code = source_link(context, top, html.Code(top.title, className="mono"))
    return html.Div([code, at, every, option], className="x")


def _versions(context: Context) -> list[str]:
    rows = context.versions
    if "v" in context.view.scope or rows.empty:
        return []
    return [str(version) for version in rows.loc[rows["requests"] > 0, "version"].tail(2)]


def _routes(context: Context) -> list[str]:
    routes = context.source.cached(context.source.read.dimensions, context.selection).get("route", {})
    return list(routes)[:_MAX_ROUTES]


def _stage_p99(context: Context, selection: Selection, stage: str) -> float | None:
    spent = context.source.cached(context.source.read.stage_latency, selection).get(stage)
    return value_at(spent, 0.99) if spent else None


def marks(context: Context) -> dict[tuple[str, str], Mark]:
    # Rounded to the day, so that the query can be cached per revision.
    today = context.view.now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    read = context.source.read
    events = context.source.cached(read.events, today - _MAX_AGE, today + timedelta(days=2), kind="advice")
    newest: dict[tuple[str, str], Mark] = {}
    for row in records(events):
        newest.setdefault((str(row["service"]), str(row["key"])), _mark(str(row["text"]), row["at"].to_pydatetime()))
    return newest


def mark_buttons(context: Context, advice: Advice) -> Component | None:
    finding, now = advice.finding, context.view.now
    environment = context.source.writing_environment(context.view.text("env"))
    if not context.source.incident_actions.may_act(finding.facts.service, environment):
        return None
    name = f"{finding_text(finding)[0]}, {finding.facts.service}"
    if advice.is_hidden(now):
        return html.Div([_button("Show again", "open", finding, name, environment)], className="acts")
    until = (now + SNOOZE).astimezone(UTC).replace(second=0, microsecond=0).isoformat()
    components = [
        _button("Done", "done", finding, name, environment),
        _button(f"Snooze {span(SNOOZE)}", f"{_SNOOZED}{until}", finding, name, environment),
        _button("Dismiss", "dismissed", finding, name, environment),
    ]
    return html.Div(components, className="acts")


def before_and_after(view: View, service: str, mark: Mark) -> str:
    """Return the address of the comparison of equal times before and after *mark*, at most as long as the window."""
    length = min(max(view.now - mark.at, _SHORTEST), view.end - view.start)
    before, after = window_name(mark.at - length, mark.at), window_name(mark.at, mark.at + length)
    return view.link("/compare", svc=service, a=before, b=after, **view.scope_of_all_versions)


def _mark(text: str, at: datetime) -> Mark:
    if text.startswith(_SNOOZED):
        try:
            until = datetime.fromisoformat(text.removeprefix(_SNOOZED))
        except ValueError:
            return Mark("open", at)
        return Mark("snoozed", at, until if until.tzinfo else until.replace(tzinfo=UTC))
    return Mark(text, at) if text in ("dismissed", "done") else Mark("open", at)


def _button(words: str, text: str, finding: StageFinding, name: str, environment: str) -> Component:
    event = {"service": finding.facts.service, "kind": "advice", "key": finding.key, "text": text}
    event |= {"environment": environment} if environment else {}
    data = {"data-post": json.dumps(event), "aria-label": f"{words}: {name}"}
    return html.Button(words, className="btn", type="button", **attributes(data))
