"""Two versions or two windows of one service: is B slower, how sure is that, and which stage is to blame."""

from __future__ import annotations

from dash import html
from dash.development.base_component import Component

from ..components import Node, attributes, card, link, pill, swatch, table
from ..format import duration, percentile
from ..view import service_path
from .compare_blame import QUANTILES, blame_card
from .compare_charts import both_card, delta_card
from .compare_pickers import head, window_links
from .compare_report import report
from .compare_signals import signals_card
from .compare_words import blamed, evidence, headline, short_name, side_names, verdict_badge
from .comparison import Comparison, Pair, asked_pair, compared, most, selection
from .page import Context, Page, nothing, panel
from .releases import Release, judge_releases
from .scope_filter import part_words, ways_out
from .service_frame import service_tabs
from .windows import EXAMPLE

_PLACE = "/regressions"
_REPORT = "report"


def render(context: Context) -> Page:
    """Return the comparison the address asks for, or the newest version against the one before."""
    if context.service is None:
        return _choose(context)
    view, service = context.view, context.service
    trail: list[tuple[str, str | None]] = [("Regressions", view.link(_PLACE))]
    trail.append((service, view.link(service_path(service))))
    if context.versions.empty:
        return Page(f"{service} · Compare · Stagelens", [*trail, ("Compare", None)], [_unknown(context)], _PLACE)
    pair = context.once(asked_pair)
    frame: list[Node] = [head(context, pair), service_tabs(context, "compare")]
    if pair is None or (view.part_of_each_version and not most(context, pair)):
        page = [*frame, _no_pair(context) if pair is None else _nobody(context)]
        return Page(f"{service} · Compare · Stagelens", [*trail, ("Compare", None)], page, _PLACE)
    judged = compared(context, pair, QUANTILES.get(view.text("p") or ""))
    name = " → ".join(side_names(context, pair))
    body = [
        *frame,
        _verdict(context, judged),
        html.Div(_cards(context, judged), className="grid"),
        _text(context, judged),
    ]
    return Page(f"{name} · {service} · Stagelens", [*trail, (name, None)], body, _PLACE)


def _cards(context: Context, judged: Comparison) -> list[Component]:
    pair: Pair = judged.pair
    return [
        panel("What B adds, by percentile", lambda: delta_card(context, pair), "c7"),
        panel("Blame", lambda: blame_card(context, judged), "c5"),
        panel("Latency by percentile", lambda: both_card(context, pair), "c7"),
        panel("What else changed", lambda: signals_card(context, pair), "c5"),
    ]


def _verdict(context: Context, judged: Comparison) -> Component:
    word, kind = verdict_badge(context, judged)
    said = " · ".join(evidence(context, judged))
    parts = [html.Div(headline(judged), className="big"), html.Div(said, className="muted")]
    chips = [html.Span([swatch(stage), f" {text}"], className="dom") for stage, text in blamed(judged)]
    title = "Blame" if judged.verdict.kind == "regression" else "Thanks to"
    causes = html.Div([html.Div(title, className="muted"), html.Div(chips, className="chips")]) if chips else None
    told = attributes({"data-copies": _REPORT})
    copy = html.Button("Copy report", type="button", className="btn pri copies", **told)
    return html.Div([pill(word, kind), html.Div(parts, className="say"), causes, copy], className="verdict")


def _text(context: Context, judged: Comparison) -> Component:
    """Return the report as text, for those without a clipboard."""
    written = html.Pre(report(context, judged), id=_REPORT, className="code", tabIndex=0)
    return html.Details([html.Summary("Report as text", className="link"), written], className="as-text")


def _unknown(context: Context) -> Component:
    return nothing(
        f"No service called {context.service}",
        "Nothing of that name was received, or it is older than what is kept.",
        actions=[link("All services", href=context.view.link("/"), className="btn pri")],
    )


def _nobody(context: Context) -> Component:
    view = context.view
    keys = list(view.part_of_each_version)
    text = "Neither side has one. Without the filter, or with another one, there may be some."
    return nothing(f"No request of {part_words(view, keys)} in A or B", text, actions=ways_out(view, keys))


def _no_pair(context: Context) -> Component:
    view, service = context.view, context.service or ""
    asked = [each for each in (view.text("a"), view.text("b")) if each]
    unknown = [each for each in asked if selection(context, each) is None]
    newest = view.link("/compare", svc=service, **view.part_of_each_version)
    usual = link("Newest with the one before", href=newest, className="btn pri")
    if unknown:
        known = "Neither is" if len(unknown) > 1 else f"{unknown[0]} is not"
        text = f"{known} a version of {service} that is kept, or a window such as {EXAMPLE} (start in UTC, length)."
        return nothing("One side is unknown" if len(unknown) == 1 else "Both sides are unknown", text, actions=[usual])
    only = ", ".join(str(each) for each in context.versions["version"] if each) or "none with a name"
    text = f"Seen of {service}: {only}. Without a second version two windows can be compared."
    return nothing("Only one version so far", text, actions=window_links(context))


def _choose(context: Context) -> Page:
    """Without a service there is a list of all, those that changed first."""
    view, source = context.view, context.source
    judged = {each.service: each for each in judge_releases(context)}
    names = [str(each) for each in source.services(view.start, view.end)["service"]]
    rows = [
        _choice(context, name, judged.get(name)) for name in [*judged, *(each for each in names if each not in judged)]
    ]
    title = html.Div([html.H1("Compare"), html.P("Two versions, or two windows, of one service", className="sub")])
    body: Node = nothing("Nothing to compare yet", "A service shows here once a request of it has been received.")
    if rows:
        titles = (("Service", ""), ("Newest release", ""), ("Latency", "r hide"), ("Verdict", "r"))
        body = card("Which service?", table(titles, rows, "Services"), flush=True)
    return Page("Compare · Stagelens", [("Compare", None)], [html.Div(title, className="phead"), body], _PLACE)


def _choice(context: Context, service: str, release: Release | None) -> Component:
    href = release.href if release else context.view.link("/compare", svc=service)
    name = html.Td(link(service, href=href, className="n"))
    if release is None:
        rest = [
            html.Td("no release in the last 7 days", className="muted"),
            html.Td("", className="r hide"),
            html.Td(""),
        ]
        return html.Tr([name, *rest], **attributes({"data-href": href}))
    pair, found = release.comparison.pair, release.comparison.verdict
    latency = f"{percentile(release.comparison.quantile)} {duration(found.a_value)} → {duration(found.b_value)}"
    cells = [
        name,
        html.Td(f"{short_name(pair.a_name)} → {short_name(pair.b_name)}"),
        html.Td(latency, className="r hide"),
        html.Td(pill(*verdict_badge(release.context, release.comparison)), className="r"),
    ]
    return html.Tr(cells, **attributes({"data-href": href}))
