"""The questions of `GET /api/v1/query/<question>`: each is one question of the store, with the same words as a page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ..core.histogram import Histogram
from .format import enough
from .pages.comparison import chosen_pair, compared, newest_pair
from .pages.page import Context
from .pages.slo_spent import split_of
from .query_params import NOT_FOUND, AskError, needed, percentiles
from .serialization import columns, rows

Arguments = dict[str, str]
_WINDOW = ("from", "to", "env")
_PART = ("model", "route", "cold")
_USUAL = "50,90,95,99"


@dataclass(frozen=True, slots=True)
class Question:
    """One question.

    Args:
        keys: The parameters it takes.
        answer: Answers it.
        about_one: Whether it is about one service, so that `service` must be given.
        about_window: Whether the response is about the window of the address; a comparison names the times of its own sides.
    """

    keys: tuple[str, ...]
    answer: Callable[[Context, Arguments], dict[str, Any]]
    about_one: bool = True
    about_window: bool = True


def framed(frame: pd.DataFrame) -> dict[str, Any]:
    """Return *frame* as the API writes tables: columns, rows."""
    return {"columns": columns(frame), "rows": rows(frame)}


def _breakdown(context: Context, given: Arguments) -> dict[str, Any]:
    wanted = percentiles(given.get("p") or _USUAL)
    frame = context.source.ask(context.source.read.breakdown, context.selection, wanted)
    return {"requests": int(frame.attrs.get("requests", 0)), **framed(frame)}


def _stalls(context: Context, given: Arguments) -> dict[str, Any]:
    wanted = percentiles(given.get("p") or _USUAL)
    return framed(context.source.ask(context.source.read.stalls, context.selection, wanted))


def _latency(context: Context, given: Arguments) -> dict[str, Any]:
    wanted = percentiles(given.get("p") or _USUAL)
    counted = context.source.ask(context.source.read.latency, context.selection)
    told = [_quantile(counted, each) for each in wanted]
    return {"requests": counted.count, **framed(pd.DataFrame(told, columns=_LATENCY))}


_LATENCY = ["percentile", "value_seconds", "low_seconds", "high_seconds", "enough"]


def _quantile(counted: Histogram, quantile: float) -> tuple[float, float | None, float | None, float | None, bool]:
    found = counted.quantile(quantile)
    if found is None:
        return quantile, None, None, None, False
    return quantile, found.value, found.low, found.high, enough(counted.count, quantile)


def _compare(context: Context, given: Arguments) -> dict[str, Any]:
    if given.get("a") or given.get("b"):
        pair = chosen_pair(context, needed(given, "a"), needed(given, "b"))
    else:
        pair = newest_pair(context)
    if pair is None:
        msg = "there are no two versions or windows to compare"
        cure = "a and b are each a version that was seen, or a window such as 2026-11-21T12:00/6h"
        raise AskError(msg, key="a", cure=cure, status=NOT_FOUND)
    wanted = percentiles(given["p"])[0] if given.get("p") else None
    found = compared(context, pair, wanted)
    return {
        "a": {"name": pair.a_name, "from": pair.a.start, "to": pair.a.end},
        "b": {"name": pair.b_name, "from": pair.b.start, "to": pair.b.end},
        "same_time": pair.together,
        "percentile": found.quantile,
        "verdict": found.verdict,
        "summary": dict(found.stages.attrs),
        **framed(found.stages),
    }


def _slo(context: Context, given: Arguments) -> dict[str, Any]:
    found = [
        each
        for each in context.source.slos()
        if given.get("service") in (None, each.slo.service) and given.get("name") in (None, each.slo.name)
    ]
    if given.get("name") and not found:
        raise _no_objective(context, given["name"])
    return {"objectives": found}


def _budgets(context: Context, given: Arguments) -> dict[str, Any]:
    name = needed(given, "name")
    slo = next((each.slo for each in context.source.slos() if each.slo.name == name), None)
    if slo is None:
        raise _no_objective(context, name)
    if not slo.budgets:
        msg = f"the objective {name} has no budgets"
        cure = "write some into the SLO file, such as budgets: {queue: 50ms}"
        raise AskError(msg, key="name", cure=cure, status=NOT_FOUND)
    split = split_of(Context(context.view, context.source, slo.service), slo)
    told = {"objective": slo.objective, "threshold_seconds": slo.threshold_seconds}
    if split is None:
        return told | {"requests": 0, **framed(pd.DataFrame(columns=_BUDGETS))}
    uses = [
        (each.stage, each.budget_seconds, each.seconds, each.mean_seconds, each.over_seconds) for each in split.uses
    ]
    return {
        **told,
        "requests": split.requests,
        "enough": enough(split.requests, slo.objective),
        "value_seconds": split.seconds,
        "mean_seconds": split.mean_seconds,
        "rest_seconds": split.rest_seconds,
        "rest_mean_seconds": split.rest_mean_seconds,
        **framed(pd.DataFrame(uses, columns=_BUDGETS)),
    }


_BUDGETS = ["stage", "budget_seconds", "seconds", "mean_seconds", "over_seconds"]


def _no_objective(context: Context, name: str) -> AskError:
    names = ", ".join(each.slo.name for each in context.source.slos()) or "none are set"
    return AskError(f"there is no objective {name}", key="name", cure=names, status=NOT_FOUND)


QUESTIONS: dict[str, Question] = {
    "breakdown": Question(("service", "version", *_PART, "p", *_WINDOW), _breakdown),
    "stalls": Question(("service", "version", *_PART, "p", *_WINDOW), _stalls),
    "latency": Question(("service", "version", *_PART, "p", *_WINDOW), _latency),
    "compare": Question(("service", "a", "b", *_PART, "p", *_WINDOW), _compare, about_window=False),
    "slo": Question(("service", "name"), _slo, about_one=False),
    "budgets": Question(("name", "version", "from", "to"), _budgets, about_one=False),
}
