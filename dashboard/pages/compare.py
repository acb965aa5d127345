"""Comparison page: two versions or two windows of one service, as cards and as Markdown for a ticket."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, timedelta

import pandas as pd
from dash import html
from dash.development.base_component import Component

from ...analysis.breakdown import COLUMNS, percentile_grid
from ...analysis.comparison import errors_along
from ...core.histogram import has_enough_samples, samples_needed
from ...core.stages import label
from ...store import Selection
from ..figures.compare import both_figure, delta_figure
from ..figures.elements import stages_of
from ..ui.components import Node, attributes, card, chart, empty, link, pill, spoken_stages, swatch, table
from ..ui.format import MILLI, change, duration, percentile, whole
from ..view import service_path
from .compare_cards import QUANTILES, blame_card, change_words, signals_card, total_words
from .comparison import (
    EXAMPLE,
    Pair,
    PairComparison,
    ask_past_if_over,
    asked_pair,
    compared,
    fewer_requests,
    lives_of,
    more_requests,
    selection,
    served,
    shifted_pair,
    window_name,
)
from .comparison_text import (
    blamed_stages,
    compared_times,
    evidence,
    short_name,
    side_name,
    side_names,
    verdict_badge,
    verdict_sentence,
)
from .page import Context, Page, empty_page_card, panel, records
from .regressions import Release, compare_releases
from .scope_filter import chips, field, leave_out_cold_link, remove_filter_links, scope_menu, scope_text
from .service_frame import service_tabs
from .shared_attributes import slow_of_side_card

_MARKED = re.compile(r"([\\`*_\[\]<>|])")
# Highest percentile of the charts; beyond it too few requests remain for a difference.
_LAST_DELTA = 0.995
_MEDIAN = 0.5
# Stages with a smaller share of the change are not in the description.
_MINOR = 0.05
# Maximum number of versions in a menu, newest first; others can be typed.
_MAX_VERSIONS = 20
_PLACE = "/regressions"
_REPORT = "report"


def report(context: Context, comparison: PairComparison) -> str:
    pair = comparison.pair
    part = scope_text(context.view, context.view.scope_of_all_versions)
    subject = f"{context.service}, {part}" if part else context.service or ""
    title = f"**{_plain(subject)}: {verdict_sentence(comparison)}** ({verdict_badge(context, comparison)[0]})"
    sides = [
        f"{side}: {_plain(name)}, {served(selection, UTC)} UTC"
        for side, name, selection in (("A", pair.a_name, pair.a), ("B", pair.b_name, pair.b))
    ]
    body = [title, " · ".join(_plain(sentence) for sentence in evidence(context, comparison)), "  \n".join(sides)]
    body += [compared_times(context, pair), _stages(comparison)]
    return (
        "\n\n".join(
            [*(paragraph for paragraph in body if paragraph), f"[Open the comparison]({address(context, comparison)})"]
        )
        + "\n"
    )


def address(context: Context, comparison: PairComparison) -> str:
    pair, at = comparison.pair, f"{comparison.quantile * 100:g}"
    return context.view.link(
        "/compare", svc=context.service, a=pair.a_name, b=pair.b_name, p=at, **context.view.scope_of_all_versions
    )


def _stages(comparison: PairComparison) -> str:
    if (
        not has_enough_samples(min(comparison.verdict.a_n, comparison.verdict.b_n), comparison.quantile)
        or comparison.stages.empty
    ):
        return ""
    head = ["| Stage | A | B | change at " + percentile(comparison.quantile) + " |", "|---|---:|---:|---:|"]
    rows = [
        f"| {_plain(label(str(record['stage'])))} | {duration(float(record['a_seconds']))} | {duration(float(record['b_seconds']))} "
        f"| {change_words(comparison, record)} |"
        for record in records(comparison.stages)
    ]
    difference = comparison.verdict
    foot = f"| **End to end** | {duration(difference.a_value)} | {duration(difference.b_value)} | {total_words(difference)} |"
    return "\n".join([*head, *rows, foot])


def _plain(text: str) -> str:
    r"""Return *text*, which may be user input, with Markdown escaped.

    >>> _plain("a|b")
    'a\\|b'
    """
    return _MARKED.sub(r"\\\1", " ".join(text.split()))


_DAY, _WEEK = timedelta(days=1), timedelta(days=7)


def render(context: Context) -> Page:
    """Return the comparison page of the address; by default, of the newest version and the version before it."""
    if context.service is None:
        return _service_list(context)
    view, service = context.view, context.service
    trail: list[tuple[str, str | None]] = [("Regressions", view.link(_PLACE))]
    trail.append((service, view.link(service_path(service))))
    if context.versions.empty:
        return Page(f"{service} · Compare · Stagelens", [*trail, ("Compare", None)], [_unknown(context)], _PLACE)
    pair = context.once(asked_pair)
    frame: list[Node] = [comparison_head(context, pair), service_tabs(context, "compare")]
    if pair is None or (view.scope_of_all_versions and not more_requests(context, pair)):
        page = [*frame, _no_pair(context) if pair is None else _no_requests(context)]
        return Page(f"{service} · Compare · Stagelens", [*trail, ("Compare", None)], page, _PLACE)
    comparison = compared(context, pair, QUANTILES.get(view.text("p") or ""))
    name = " → ".join(side_names(context, pair))
    body = [
        *frame,
        _verdict(context, comparison),
        html.Div(_cards(context, comparison), className="grid"),
        _text(context, comparison),
    ]
    return Page(f"{name} · {service} · Stagelens", [*trail, (name, None)], body, _PLACE)


def _cards(context: Context, comparison: PairComparison) -> list[Component]:
    pair: Pair = comparison.pair
    title = "What slow requests of B share"
    shared = panel(title, lambda: slow_of_side_card(context, pair.b, comparison.quantile, "B"))
    return [
        panel("What B adds, by percentile", lambda: delta_card(context, pair), "c7"),
        panel("Blame", lambda: blame_card(context, comparison), "c5"),
        panel("Latency by percentile", lambda: both_card(context, pair), "c7"),
        panel("What else changed", lambda: signals_card(context, pair), "c5"),
        shared,
    ]


def _verdict(context: Context, comparison: PairComparison) -> Component:
    word, kind = verdict_badge(context, comparison)
    details = " · ".join(evidence(context, comparison))
    parts = [html.Div(verdict_sentence(comparison), className="big"), html.Div(details, className="muted")]
    chips = [html.Span([swatch(stage), f" {text}"], className="dom") for stage, text in blamed_stages(comparison)]
    causes = html.Div([html.Div("Cause", className="muted"), html.Div(chips, className="chips")]) if chips else None
    copies = attributes({"data-copies": _REPORT, "data-copied": "Report"})
    copy = html.Button("Copy report", type="button", className="btn pri copies", **copies)
    return html.Div([pill(word, kind), html.Div(parts, className="say"), causes, copy], className="verdict")


def _text(context: Context, comparison: PairComparison) -> Component:
    written = html.Pre(report(context, comparison), id=_REPORT, className="code", tabIndex=0)
    return html.Details([html.Summary("Report as text", className="link"), written], className="as-text")


def _unknown(context: Context) -> Component:
    return empty_page_card(
        f"No service called {context.service}",
        "No data of that name was received, or it is older than the retention.",
        actions=[link("All services", href=context.view.link("/"), className="btn pri")],
    )


def _no_requests(context: Context) -> Component:
    view = context.view
    keys = list(view.scope_of_all_versions)
    text = "Change or remove the filter."
    return empty_page_card(
        f"No request of {scope_text(view, keys)} in A or B", text, actions=remove_filter_links(view, keys)
    )


def _no_pair(context: Context) -> Component:
    view, service = context.view, context.service or ""
    asked = [version for version in (view.text("a"), view.text("b")) if version]
    unknown = [version for version in asked if selection(context, version) is None]
    newest = view.link("/compare", svc=service, **view.scope_of_all_versions)
    usual = link("Newest and previous version", href=newest, className="btn pri")
    if unknown:
        subject = "Neither is" if len(unknown) > 1 else f"{unknown[0]} is not"
        text = (
            f"{subject} a version of {service} that is retained, or a window such as {EXAMPLE} (start in UTC, length)."
        )
        return empty_page_card(
            "One side is unknown" if len(unknown) == 1 else "Both sides are unknown", text, actions=[usual]
        )
    only = ", ".join(str(version) for version in context.versions["version"] if version) or "no named version"
    text = f"Known versions of {service}: {only}. You can compare two windows instead."
    return empty_page_card("Only one version so far", text, actions=window_links(context))


def _service_list(context: Context) -> Page:
    view, source = context.view, context.source
    releases = {release.service: release for release in compare_releases(context)}
    names = [str(service) for service in source.services(view.start, view.end)["service"]]
    rows = [
        _service_choice(context, name, releases.get(name))
        for name in [*releases, *(name for name in names if name not in releases)]
    ]
    title = html.Div([html.H1("Compare"), html.P("Two versions, or two windows, of one service", className="sub")])
    body: Node = empty_page_card("Nothing to compare yet", "A service appears here after its first request.")
    if rows:
        titles = (("Service", ""), ("Newest release", ""), ("Latency", "r hide"), ("Verdict", "r"))
        body = card("Which service?", table(titles, rows, "Services"), flush=True)
    return Page("Compare · Stagelens", [("Compare", None)], [html.Div(title, className="phead"), body], _PLACE)


def _service_choice(context: Context, service: str, release: Release | None) -> Component:
    href = release.href if release else context.view.link("/compare", svc=service)
    name = html.Td(link(service, href=href, className="n"))
    if release is None:
        rest = [
            html.Td("no release in the last 7 days", className="muted"),
            html.Td("", className="r hide"),
            html.Td(""),
        ]
        return html.Tr([name, *rest], **attributes({"data-href": href}))
    pair, comparison = release.comparison.pair, release.comparison.verdict
    latency = (
        f"{percentile(release.comparison.quantile)} {duration(comparison.a_value)} → {duration(comparison.b_value)}"
    )
    cells = [
        name,
        html.Td(f"{short_name(pair.a_name)} → {short_name(pair.b_name)}"),
        html.Td(latency, className="r hide"),
        html.Td(pill(*verdict_badge(release.context, release.comparison)), className="r"),
    ]
    return html.Tr(cells, **attributes({"data-href": href}))


def delta_card(context: Context, pair: Pair) -> Component:
    title, sub = "What B adds, by percentile", "B minus A, by stage; the stages add up to the line"
    frames = _frames(context, pair)
    if frames is None:
        return card(title, _too_few_requests(context, pair), size="c7")
    a, b = (frame[frame["percentile"] <= _LAST_DELTA].reset_index(drop=True) for frame in frames)
    table, errors = change_table(a, b), _errors(context, pair, a)
    total = float(b["value_seconds"].iloc[-1] - a["value_seconds"].iloc[-1])
    last = {stage: float(_ms(b, stage).iloc[-1] - _ms(a, stage).iloc[-1]) * MILLI for stage in stages_of(b, COLUMNS)}
    causes = spoken_stages(
        {stage: seconds for stage, seconds in last.items() if abs(seconds) >= abs(total) * _MINOR}, 2
    )
    at = percentile(float(b["percentile"].iloc[-1]))
    name_a, name_b = side_names(context, pair)
    sentence = f"{duration(total, sign=True)} at {at}" + (f", mostly {causes}." if causes else ".")
    if abs(total) <= errors[-1]:
        sentence = f"within the error at {at}."
    spoken = f"Difference between {name_b} and {name_a} at each percentile, by stage: {sentence}"
    return card(title, chart("delta", delta_figure(a, b, errors), spoken, 330, frame=table), sub=sub, size="c7")


def _errors(context: Context, pair: Pair, grid: pd.DataFrame) -> list[float]:
    """Return the error of the difference between both sides at the percentiles of *grid* [seconds]."""
    a, b = (ask_past_if_over(context, context.source.read.latency, side) for side in (pair.a, pair.b))
    return errors_along(a, b, grid["percentile"].tolist())


def both_card(context: Context, pair: Pair) -> Component:
    frames = _frames(context, pair)
    if frames is None:
        return card("Latency by percentile", _too_few_requests(context, pair), size="c7")
    a, b = frames
    name_a, name_b = side_names(context, pair)
    # The name of a window does not fit beside the plot; the menus show it.
    periods = lives_of(context)
    beside = (name_a if pair.a_name in periods else "", name_b if pair.b_name in periods else "")
    errors = _errors(context, pair, a)
    figure = both_figure(a, b, beside, errors)
    at, before, after = (column.iloc[-1] for column in (b["percentile"], a["value_seconds"], b["value_seconds"]))
    difference = change(float(after / before - 1) if before else None, certain=abs(after - before) > errors[-1])
    spoken = (
        f"Latency of {name_a} and {name_b} by percentile on a logarithmic scale, at {percentile(float(at))} "
        f"{duration(float(before))} and {duration(float(after))}, {difference}."
    )
    component = chart("both", figure, spoken, 290, frame=both_table(a, b))
    return card("Latency by percentile", component, sub="log scale", size="c7")


def change_table(a: pd.DataFrame, b: pd.DataFrame) -> pd.DataFrame:
    stages = [*dict.fromkeys([*stages_of(b, COLUMNS), *stages_of(a, COLUMNS)])]
    columns = {
        "percentile": b["percentile"] * 100,
        "A (ms)": _ms(a, "value_seconds"),
        "B (ms)": _ms(b, "value_seconds"),
    }
    columns["change (ms)"] = columns["B (ms)"] - columns["A (ms)"]
    columns |= {f"{label(stage)} (ms)": _ms(b, stage) - _ms(a, stage) for stage in stages}
    return pd.DataFrame(columns)


def both_table(a: pd.DataFrame, b: pd.DataFrame) -> pd.DataFrame:
    """Return the numbers of the second chart: percentile, and both latencies with their error bounds."""
    columns = {"percentile": b["percentile"] * 100}
    for name, frame in (("A", a), ("B", b)):
        for text, column in ((name, "value"), (f"{name} at least", "low"), (f"{name} at most", "high")):
            columns[f"{text} (ms)"] = _ms(frame, f"{column}_seconds")
    return pd.DataFrame(columns)


def _ms(frame: pd.DataFrame, column: str) -> pd.Series[float]:
    seconds = frame[column] if column in frame.columns else pd.Series(0.0, index=frame.index)
    return seconds.astype(float) / MILLI


def _frames(context: Context, pair: Pair) -> tuple[pd.DataFrame, pd.DataFrame] | None:
    source, least = context.source, fewer_requests(context, pair)
    grid = percentile_grid(least)
    if not grid or not has_enough_samples(least, _MEDIAN):
        return None
    return source.cached(source.read.breakdown, pair.a, grid), source.cached(source.read.breakdown, pair.b, grid)


def _too_few_requests(context: Context, pair: Pair) -> Component:
    text = f"p50 needs {samples_needed(_MEDIAN)} requests on both sides; one side has {whole(fewer_requests(context, pair))}."
    return empty("Too few requests", text)


@dataclass(frozen=True, slots=True)
class SideNames:
    """Names of both sides in the address, whether or not they exist; "" for a missing one."""

    a: str
    b: str


def comparison_head(context: Context, pair: Pair | None) -> Component:
    view = context.view
    names = SideNames(pair.a_name, pair.b_name) if pair else SideNames(view.text("a") or "", view.text("b") or "")
    about = html.P([html.B(context.service, className="b"), " · two versions, or two windows"], className="sub")
    note = compared_times(context, pair) if pair else ""
    left = html.Div([html.H1("Compare"), about, html.P(note, className="sub") if note else None])
    tools: list[Node] = [
        _picker(context, "A", names, pair.a if pair else None, _presets_a(context, pair)),
        html.Span("→", className="muted"),
        _picker(context, "B", names, pair.b if pair else None, _presets_b(context)),
    ]
    if names.a and names.b:
        tools.append(link("Swap", href=view.here(a=names.b, b=names.a), className="btn ghost"))
    tools += [scope_menu(context, "r"), leave_out_cold_link(context), *chips(context, ("m", "r", "cold"))]
    return html.Div([left, html.Span(className="grow"), html.Div(tools, className="pick")], className="phead")


def window_links(context: Context) -> list[Component]:
    start, end = context.axis.start, context.view.end
    middle = start + (end - start) / 2
    earlier, later = window_name(start, middle), window_name(middle, end)
    halves = link(
        "Second half and first half of the window", href=context.view.here(a=earlier, b=later), className="btn pri"
    )
    rest = [link(text, href=href, className="btn") for text, href in _presets_a(context, None, with_requests=True)]
    return [halves, *rest]


def _picker(
    context: Context, side: str, names: SideNames, compared: Selection | None, presets: list[tuple[str, str]]
) -> Component:
    name = names.a if side == "A" else names.b
    entries: list[Node] = [html.Div("Versions", className="zone")]
    entries += [_version(context, side, version, names) for version in list(lives_of(context))[::-1][:_MAX_VERSIONS]]
    entries.append(html.Div("Windows", className="zone"))
    entries += [link(text, href=href, className="btn ghost") for text, href in presets]
    entries.append(field(side.lower(), "", EXAMPLE))
    return html.Details(
        [_summary(context, side, name, compared), html.Div(entries, className="pop")], className="menu side-menu"
    )


def _summary(context: Context, side: str, name: str, compared: Selection | None) -> Component:
    chosen = compared or (selection(context, name) if name else None)
    title, when = (
        side_name(context, name, chosen) if chosen else (short_name(name) or "choose", "not retained" if name else "")
    )
    parts: list[Node] = [html.Span(side, className="kbd"), html.B(title, className="t", title=name)]
    parts += [html.Span(when, className="muted hide") if when else None, html.I(className="ic ic-down")]
    return html.Summary(parts, className="btn")


def _version(context: Context, side: str, version: str, names: SideNames) -> Component:
    now = version == (names.a if side == "A" else names.b)
    href = context.view.here(a=version, b=names.b) if side == "A" else context.view.here(a=names.a, b=version)
    current = attributes({"aria-current": "true"}) if now else {}
    chosen = selection(context, version)
    when = side_name(context, version, chosen)[1] if chosen else ""
    return link(
        [html.Span(short_name(version), title=version), html.Span(when, className="muted")],
        href=href,
        className="btn ghost",
        **current,
    )


def _presets_a(context: Context, pair: Pair | None, *, with_requests: bool = False) -> list[tuple[str, str]]:
    later = pair.b if pair else context.selection
    name = pair.b_name if pair else window_name(later.start, later.end)
    lengths = {
        "Previous window of equal length": later.end - later.start,
        "Same time yesterday": _DAY,
        "Same time last week": _WEEK,
    }
    pairs = {text: shifted_pair(context, later, back, name) for text, back in lengths.items()}
    shown = {text: pair for text, pair in pairs.items() if not with_requests or fewer_requests(context, pair)}
    return [(text, context.view.here(a=pair.a_name, b=pair.b_name)) for text, pair in shown.items()]


def _presets_b(context: Context) -> list[tuple[str, str]]:
    window = context.selection
    name = window_name(window.start, window.end)
    pair = shifted_pair(context, window, window.end - window.start, name)
    return [(context.view.window_label, context.view.here(a=pair.a_name, b=pair.b_name))]
