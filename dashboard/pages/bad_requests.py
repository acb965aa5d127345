"""The requests that broke an objective, as its card, its page and its incident show them: the same requests, the same stage."""

from __future__ import annotations

from datetime import datetime

import pandas as pd

from ...alerts.evaluation.evidence import CALM_BEFORE, excess_by_stage, filter_params
from ...alerts.objectives.slo import Slo
from ...analysis.comparison import StageGrowth, dominant_growth
from ...core.stages import label
from ..format import duration, portion
from ..view import View, service_path
from .page import Context
from .service_status import clock_or_date


def bad_breakdown(context: Context, slo: Slo, start: datetime, end: datetime) -> pd.DataFrame:
    """Return what `Reader.bad_breakdown` does: the mean stage times of requests that broke *slo*, and of those that kept it."""
    source = context.source
    return source.ask(source.read.bad_breakdown, slo.select(start, end), slo.threshold_seconds)


def blamed_stage(context: Context, slo: Slo) -> tuple[str, str]:
    """Return the stage to blame for an objective in trouble, and a sentence about it; "" where there is none.

    While an incident is open it is that of the incident; else that of the requests of the window that broke the objective.
    """
    if slo.stage is not None:
        return slo.stage, f"The objective is about {label(slo.stage)}"
    if slo.kind != "latency":
        return "", ""
    view = context.view
    incident = next((each for each in context.open_incidents if each.name == slo.name), None)
    growth = incident.stages if incident else excess_by_stage(bad_breakdown(context, slo, view.start, view.end))
    blamed = dominant_growth(growth)
    if blamed is None:
        return "", "No stage stands out in the requests that broke it"
    return blamed.stage, bad_sentence(
        blamed, f"since {clock_or_date(incident.since, view)}" if incident else in_window(view)
    )


def in_window(view: View) -> str:
    """Return the window of the address within a sentence: `in the last 6 h`."""
    words = view.window_label
    return f"in the {words[0].lower()}{words[1:]}" if words.startswith("Last") else f"from {words}"


def bad_sentence(blamed: StageGrowth, when: str) -> str:
    """Say what bad requests spend more time in, *when*.

    >>> bad_sentence(StageGrowth("queue", 0.424, 0.95), "since 11:20").replace("\u202f", " ")
    'Bad requests since 11:20 spend 424 ms more in Queue, 95 % of the excess'
    """
    more = f"{duration(blamed.seconds)} more in {label(blamed.stage)}"
    return f"Bad requests {when} spend {more}, {portion(blamed.share)} of the excess"


def requests_path(view: View, slo: Slo, began: datetime, end: datetime | None) -> str:
    """Return the address of the retained requests that broke *slo*, with the calm before it.

    Args:
        view: The address.
        slo: The objective.
        began: When the trouble began.
        end: When it was over; None while it goes on.
    """
    window = {"from_": str(int((began - CALM_BEFORE).timestamp() * 1000))}
    if end is not None:
        window["to"] = str(int(end.timestamp() * 1000))
    why: dict[str, str] = {}
    if slo.kind == "latency" and slo.threshold_seconds is not None:
        why = {"min": f"{slo.threshold_seconds * 1000:g}ms"}
    elif slo.kind == "availability":
        why = {"err": "1"}
    elif slo.stage is not None:
        why = {"dom": slo.stage}
    environment = {"env": slo.environment} if slo.environment else {}
    return view.link(service_path(slo.service, "traces"), **filter_params(slo), **why, **environment, **window)
