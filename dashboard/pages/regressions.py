"""Regressions page: the newest version of every service, compared with the version before.

The overview, the side bar and this page use the verdicts of `compare_releases`, so that their counts agree.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import pandas as pd
from dash import html
from dash.development.base_component import Component

from ...alerts.reader import Incident
from ..ui.components import Node, attributes, card, link, pill, swatch, table
from ..ui.format import THIN, UNKNOWN, change, day, duration, percentile, signed_change, span
from .comparison import LIFETIME, SERVING, Lives, PairComparison, compared, lives, newest_pair, read_newest, verdict_of
from .comparison_text import (
    VERDICT_WORDS,
    blamed_stages,
    median_words,
    mix_sentence,
    short_name,
    verdict_badge,
    verdict_sentence,
)
from .page import Context, Page, empty_page_card, no_data, panel

# Smaller slowdowns are listed without a warning colour. [ratio]
MATERIAL = 1.1
_ORDER = {"regression": 0, "improvement": 1, "same": 2, "not_enough": 3}
_NO_STAGES = pd.DataFrame(columns=["stage", "a_seconds", "b_seconds", "delta_seconds", "share"])
_HEAD: tuple[tuple[str, str], ...] = (
    ("Service", ""),
    ("Since", "hide"),
    ("Latency", "r"),
    ("Change", "r"),
    ("Cause", "hide"),
    ("Median", "hide"),
    ("Traffic", "hide"),
    ("Incident", "hide"),
)
# Maximum number of unchanged services in the list.
_MAX_REST = 100
# Interval bounds of at least this ratio are written as unknown.
_UNKNOWN_END = 1000


def render(context: Context) -> Page:
    trail: list[tuple[str, str | None]] = [("Regressions", None)]
    if not len(context.source.all_services(context.view.text("env"))):
        return Page("Regressions · Stagelens", trail, no_data(context), "/regressions")
    releases = compare_releases(context)
    slower = [release for release in releases if release.is_regression]
    faster = [
        release for release in releases if release.comparison.verdict.kind == "improvement" and not release.rolled_back
    ]
    rest = [release for release in releases if release not in slower and release not in faster]
    body: list[Node] = [_head(context, len(releases), len(slower))]
    if slower:
        body.append(panel("Open", lambda: _section("Open", "slower with the newest version, slowest first", slower)))
    if faster:
        body.append(panel("Improved", lambda: _section("Improved", "faster with the newest version", faster)))
    if rest:
        body.append(panel("No difference or not evaluated", lambda: _unchanged(rest)))
    if not releases:
        body.append(_no_releases(context))
    return Page("Regressions · Stagelens", trail, body, "/regressions")


def headline(compared: int, slower: int) -> str:
    """Return the summary sentence of the page.

    >>> headline(7, 2)
    '2 of 7 released services became slower'
    """
    if not compared:
        return "No service was released in the last 7 days"
    services = f"released service{'s' * (compared != 1)}"
    return f"{slower or 'None'} of {compared} {services} became slower"


def _head(context: Context, compared: int, slower: int) -> Component:
    about = (
        "The newest version of each service against the previous version, at the highest percentile that both support, up to p99; "
        "releases of the last 7 days"
    )
    parts = [html.H1(headline(compared, slower)), html.P(f"{about}.", className="sub")]
    other = link([html.I(className="ic ic-compare"), "Compare others"], context.view.link("/compare"), className="btn")
    return html.Div([html.Div(parts, className="say"), other], className="phead")


def _section(title: str, sub: str, releases: Sequence[Release]) -> Component:
    return card(title, table(_HEAD, [_row(release) for release in releases], title), sub=sub, flush=True)


def _row(release: Release) -> Component:
    comparison = release.comparison
    difference, at = comparison.verdict, percentile(comparison.quantile)
    causes = [html.Span([swatch(stage), text], className="dom") for stage, text in blamed_stages(comparison)[:1]]
    cells = [
        html.Td([_name(release), *[html.Div(cause, className="s mob") for cause in causes]]),
        html.Td(_since(release), className="muted hide"),
        html.Td(
            [f"{duration(difference.a_value)} → {duration(difference.b_value)}", html.Div(at, className="s")],
            className="r",
        ),
        html.Td(_change(release), className="r"),
        html.Td(causes, className="hide"),
        html.Td(
            median_words(release.context, comparison).removeprefix("p50 ").capitalize() or UNKNOWN,
            className="muted hide",
        ),
        html.Td(_traffic(release), className="hide"),
        html.Td(_incident(release), className="hide"),
    ]
    return html.Tr(cells, **attributes({"data-href": release.href}))


def _name(release: Release) -> Component:
    pair = release.comparison.pair
    name = link(release.service, href=release.href, className="n cut", title=release.service)
    versions = html.Div(f"{short_name(pair.a_name)} → {short_name(pair.b_name)}", className="s")
    return html.Div([name, versions], className="named", title=f"{pair.a_name} → {pair.b_name}")


def _since(release: Release) -> str:
    view, age = release.context.view, release.context.at - release.since
    return f"{day(release.since.astimezone(view.zone))} · {span(age)} ago"


def _change(release: Release) -> list[Node]:
    comparison = release.comparison.verdict
    ratio = comparison.ratio
    if ratio is None or comparison.ratio_low is None or comparison.ratio_high is None:
        return [html.Span(UNKNOWN, className="muted")]
    high = signed_change(comparison.ratio_high - 1) if comparison.ratio_high < _UNKNOWN_END else "unknown"
    text = f"{signed_change(comparison.ratio_low - 1)} to {high}"
    css = f"b {VERDICT_WORDS[comparison.kind][1]}" if comparison.has_changed else "muted"
    size = html.Span(
        signed_change(ratio - 1) if comparison.has_changed else change(ratio - 1, certain=False), className=css
    )
    return [size, html.Div(text, className="s hide", title=f"The 99{THIN}% interval of the change")]


def _traffic(release: Release) -> Component:
    pair = release.comparison.pair
    badge, kind = verdict_badge(release.context, release.comparison)
    mix = mix_sentence(release.context, pair)
    if ", but " in badge:
        return html.Span(pill(badge.partition(", but the ")[2], kind), title=mix)
    return html.Span("same" if mix == "traffic mix unchanged" else mix or UNKNOWN, className="muted cut", title=mix)


def _incident(release: Release) -> Node:
    incident = release.incident
    if incident is None:
        return html.Span("none open", className="muted")
    kind = "bad" if incident.severity == "page" else "warn"
    text = f"open for {span(release.context.at - incident.since)}"
    return html.Span(pill(text, kind), title=incident.headline)


def _unchanged(releases: Sequence[Release]) -> Component:
    rows = [_unchanged_section(release) for release in releases[:_MAX_REST]]
    head = (("Service", ""), ("Verdict", ""), ("Why", "hide"))
    many = f"No difference, or not evaluated: {len(releases)} service{'s' * (len(releases) != 1)}"
    more = len(releases) - len(rows)
    foot = (
        html.P(f"{more} more are not listed. See the Compare tab of each service.", className="foot") if more else None
    )
    return html.Details([html.Summary(many), table(head, rows, many), foot], className="card c12 fold")


def _unchanged_section(release: Release) -> Component:
    word, kind = verdict_badge(release.context, release.comparison)
    if release.rolled_back:
        word, kind = "Rolled back", "out"
    cells = [
        html.Td(_name(release)),
        html.Td(pill(word, kind)),
        html.Td(verdict_sentence(release.comparison), className="muted hide"),
    ]
    return html.Tr(cells, **attributes({"data-href": release.href}))


def _no_releases(context: Context) -> Component:
    return empty_page_card(
        "Nothing to evaluate",
        "A service is evaluated for 7 days after the first request of a new version (service.version).",
        "You can compare two windows of the same version at any time.",
        actions=[link("Compare two windows", href=context.view.link("/compare"), className="btn pri")],
    )


@dataclass(frozen=True, slots=True)
class Release:
    context: Context
    comparison: PairComparison
    since: datetime
    rolled_back: bool
    incident: Incident | None

    @property
    def service(self) -> str:
        return self.context.service or ""

    @property
    def is_regression(self) -> bool:
        return self.comparison.verdict.kind == "regression" and not self.rolled_back

    @property
    def is_clear(self) -> bool:
        return self.is_regression and (self.comparison.verdict.ratio_low or 0.0) >= MATERIAL

    @property
    def href(self) -> str:
        pair, at = self.comparison.pair, f"{self.comparison.quantile * 100:g}"
        return self.context.view.link("/compare", svc=self.service, a=pair.a_name, b=pair.b_name, p=at)


def regressions(context: Context) -> list[Release]:
    return [release for release in compare_releases(context) if release.is_regression]


def compare_releases(context: Context) -> list[Release]:
    """Return the newest version of every service with a release in the window or the last 7 days, worst first.

    One query reads the versions of all services, and one the latency of the two newest of each. A release needs another query if
    its latency changed, or if it served together with the version before; the results are cached, see `ask_past_if_over`.
    """
    source = context.source
    periods_by_service = lives(source.cached(source.read.releases, context.view.text("env")), context.view.past_end)
    oldest = min(context.view.start, context.at - LIFETIME)
    incidents = {
        incident.service: incident
        for incident in sorted(context.open_incidents, key=lambda incident: incident.severity == "page")
    }
    recent = {
        service: versions
        for service, versions in periods_by_service.items()
        if len(versions) > 1 and max(period.start for period in versions.values()) >= oldest
    }
    read_newest(context, recent)
    all_releases = [
        _release(context.of(service), versions, incidents.get(service)) for service, versions in recent.items()
    ]
    return sorted((release for release in all_releases if release is not None), key=_severity)


def _release(context: Context, versions: Lives, incident: Incident | None) -> Release | None:
    pair = newest_pair(context, versions)
    if pair is None:
        return None
    before, newest = versions[pair.a_name], versions[pair.b_name]
    difference, quantile = verdict_of(context, pair)
    if difference.kind in {"regression", "improvement"}:
        comparison = compared(context, pair, quantile)
    else:
        comparison = PairComparison(pair, quantile, difference, _NO_STAGES, ())
    return Release(context, comparison, newest.start, before.end - newest.end > SERVING, incident)


def _severity(release: Release) -> tuple[int, bool, float, str]:
    comparison = release.comparison.verdict
    sure = comparison.ratio_low if (comparison.ratio or 1.0) >= 1 else comparison.ratio_high
    size = abs(math.log(sure)) if sure and math.isfinite(sure) else 0.0
    return _ORDER[comparison.kind], release.rolled_back, -size, release.service
