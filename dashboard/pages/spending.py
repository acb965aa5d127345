"""Cost of requests: per request, per good request, and by stage."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from dash import html
from dash.development.base_component import Component

from ...analysis.costs import MILLION, cost_by_stage, cost_of_request
from ...core.stages import BY_KEY, label
from ...store import Indicator
from ..ui.components import Node, card, code_block, empty, swatch, table, tile
from ..ui.design_tokens import hue
from ..ui.format import TIMES, UNKNOWN, attained, axis_duration, duration, money, percent
from .hardware import hardware_frame, mean_utilization, utilization
from .page import Context

_COLUMNS = ("at", "n", "value_seconds")
_EXAMPLE = """currency: "$"
prices:
  - service: {service}
    per_hour: 12.4"""


@dataclass(frozen=True, slots=True)
class Spending:
    currency: str  # currency sign or code
    per_hour: float  # cost of the service [currency/hour]
    each: float | None  # cost of a request; None without requests [currency]
    good: float | None  # cost of a good request, including the cost of the bad ones [currency]
    bad_share: float  # share of bad requests [ratio]


def spending(context: Context) -> Spending | None:
    costs, source = context.source.costs, context.source
    per_hour = costs.per_hour(context.service or "", context.view.text("env")) if costs else None
    # A price covers all requests of a service, not the requests of one version, model or route.
    if costs is None or per_hour is None or context.view.scope:
        return None
    counted = source.cached(source.read.tally, context.selection, Indicator("latency", context.threshold_seconds))
    whole = cost_of_request(per_hour, context.seconds, counted.total)
    good = cost_of_request(per_hour, context.seconds, counted.total - counted.bad)
    return Spending(costs.currency, per_hour, whole, good, counted.bad / max(counted.total, 1))


def mean_stages(context: Context) -> dict[str, float]:
    """Return the mean time [seconds] of each stage over the requests in the window."""
    view, source = context.view, context.source
    frame = source.cached(source.read.breakdown_over_time, context.selection, None, view.end - view.start)
    if not len(frame):
        return {}
    weight = frame["n"].to_numpy(dtype=float)
    means = {
        str(name): float((frame[name].fillna(0.0).to_numpy(dtype=float) * weight).sum() / weight.sum())
        for name in frame.columns
        if name not in _COLUMNS
    }
    return {stage: seconds for stage, seconds in means.items() if seconds > 0}


def cost_tile(context: Context) -> Component:
    name, spent = "Cost per 1 M", spending(context)
    if spent is None:
        return tile(name, UNKNOWN, "", "unknown with a filter" if context.view.scope else "no price is set")
    if spent.each is None:
        return tile(name, UNKNOWN, "", "no request")
    good = "no good requests" if spent.good is None else f"{money(spent.good * MILLION, spent.currency)} per 1 M good"
    return tile(name, money(spent.each * MILLION, spent.currency), "", good)


def cost_card(context: Context, size: str) -> Component:
    spent, means = spending(context), mean_stages(context)
    shares = cost_by_stage(1.0, means)
    if not shares:
        return card("Cost by stage", empty("No stage with busy time in this window"), size=size)
    whole = spent.each * MILLION if spent and spent.each is not None else None
    rows = [_row(stage, shares, means, whole, spent.currency if spent else "") for stage in sorted(shares, key=lambda stage: -shares[stage])]  # fmt: skip
    head: list[tuple[Node, str]] = [("Stage", "w1"), ("mean", "r w2"), ("of busy time", "r w2")]
    head += [("per 1 M", "r w2"), (f"saved at 2{TIMES}", "r w2")] if whole is not None else []
    body: list[Node] = [table((*head, ("", "hide")), rows, "Cost by stage", css="insp wide")]
    if whole is None and not context.view.scope:
        body.append(_how_to_price(context))
    if spent is not None and spent.each is not None:
        body.append(_idle_cost(context, spent.each * MILLION, spent.currency))
    waiting = sum(seconds for stage, seconds in means.items() if stage in BY_KEY and BY_KEY[stage].waiting)
    foot = f"Cost is split by mean busy time. Waiting ({duration(waiting)} on average) has no cost. The saving is an upper bound: it is reached only if the freed time is used."
    return card("Cost by stage", body, sub=_sub(context, spent), foot=html.Span(foot), size=size)


def _idle_cost(context: Context, whole: float, currency: str) -> Component | None:
    frame = hardware_frame(context)
    share = mean_utilization(frame)
    if share is None:
        return None
    kind, _ = utilization(frame)
    worked, idle = (money(part * whole, currency) for part in (share, 1 - share))
    text = f"{kind}s busy {percent(share)} of the time: of {money(whole, currency)} per 1 M, {worked} is for busy and {idle} for idle machines."
    return html.P(text, className="priced muted")


def _sub(context: Context, spent: Spending | None) -> str:
    if spent is None or spent.each is None:
        return "share of busy time"
    speed = f" under {axis_duration(context.threshold_seconds)}" if context.threshold_seconds is not None else ""
    good = f"; {attained(1 - spent.bad_share)} of requests are good (succeeded{speed})"
    return f"{money(spent.per_hour, spent.currency)} per hour{good}"


def _row(
    stage: str, shares: Mapping[str, float], means: Mapping[str, float], whole: float | None, currency: str
) -> Component:
    share = shares[stage]
    bar = html.I(style={"width": f"{max(share / max(shares.values()) * 100, 0.6):.1f}%"})
    spent: list[Node] = [
        html.Td(money(share * whole, currency), className="r now"),
        html.Td(money(share * whole / 2, currency), className="r"),
    ] if whole is not None else []  # fmt: skip
    return html.Tr(
        [
            html.Th(html.Span([swatch(stage), label(stage)], className="nm"), scope="row"),
            html.Td(duration(means[stage]), className="r"),
            html.Td(percent(share), className="r"),
            *spent,
            html.Td(html.Span(bar, className=f"dv st-{hue(stage)}"), className="hide"),
        ]
    )


def _yaml_string(service: str) -> str:
    return service if re.fullmatch(r"[A-Za-z][\w.-]*", service) else json.dumps(service)


def _how_to_price(context: Context) -> Component:
    return html.Div(
        [
            html.P("No price is set. Write a price file, and name it with --prices or STAGELENS_PRICES:", className="muted"),
            code_block(_EXAMPLE.format(service=_yaml_string(context.service or ""))),
        ],
        className="priced",
    )  # fmt: skip
