"""Card of the trace page with the functions that one request was in, from the samples of the tail profiler."""

from __future__ import annotations

from collections import defaultdict

from dash import html
from dash.development.base_component import Component

from ...analysis.profile import MIN_SAMPLED, FunctionTime, ProfileBand, functions, profile_of_request
from ...core import names
from ...core.code_stack import split_stack_key
from ...core.stages import label
from ...store import KeptTrace
from ..ui.components import card, table
from ..ui.format import duration, percent

_MAX_FUNCTIONS = 12
_HEAD = (("Stage", ""), ("Function", ""), ("Place", "hide"), ("Time", "r"), ("Of stage", "r hide"))


def code_card(found: KeptTrace) -> Component:
    """Return the functions that the request was in."""
    shown = request_functions(found)[:_MAX_FUNCTIONS]
    if not shown:
        return card("Code of this request", html.P("This request has no valid samples.", className="muted"))
    rows = [
        html.Tr(
            [
                html.Td(label(each.stage)),
                html.Td(each.function, className="mono", title=f"{each.module}:{each.function}"),
                html.Td(each.place, className="mono muted hide", title=each.file),
                html.Td(duration(each.tail_self_ms / 1e3), className="r b"),
                html.Td(percent(each.share), className="r muted hide"),
            ]
        )
        for each in shown
    ]
    sub = "estimated from samples; time in libraries counts for the function that called them"
    return card("Code of this request", table(_HEAD, rows, "Functions of this request"), sub=sub, flush=True)


def request_functions(found: KeptTrace) -> list[FunctionTime]:
    """Return the functions with the sampled time of the request, in descending order."""
    sampled = profile_of_request(str(found.attributes.get(names.PROFILE, "")))
    stages: dict[str, float] = defaultdict(float)
    for key, micros in sampled.items():
        stages[split_stack_key(key)[0]] += micros / 1e6
    stacks = {key: micros / 1e6 for key, micros in sampled.items()}
    # One request is not an estimate for others, so the minimum number of sampled requests does not apply.
    band = ProfileBand(found.duration_ns / 1e9, MIN_SAMPLED, stages, stacks)
    return [each for each in functions(band) if each.tail_self_ms > 0]
