"""Replicas page: age of each replica, cold start times, and their share of p99."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import pandas as pd
from dash import html
from dash.development.base_component import Component

from ...core.histogram import has_enough_samples
from ...core.stages import LOAD_PHASES, LOAD_START
from ..ui.components import Node, card, empty, table
from ..ui.format import UNKNOWN, count, day, duration, percentile, several, span
from ..view import ONLY_COLD, WITHOUT_COLD
from .page import Context, Page, panel, records
from .service_frame import service_page

# Agents send every ten seconds, and retry.
_SILENT = timedelta(seconds=60)
# Maximum number of replicas in the list, newest first.
_MAX_REPLICAS, _MAX_LOADS = 50, 100
_LOADING = tuple(phase for phase in LOAD_PHASES.values() if phase is not LOAD_START)


@dataclass(frozen=True, slots=True)
class Replica:
    """Process of a service.

    Args:
        name: Host and process id, as in the card *Hardware*.
        instance: `service.instance.id` of the process.
        version: Version of the service.
        began: Start of the process; None if not reported.
        heard: Time of its last data; None if long ago.
        seconds: Duration of each start phase. [seconds]
    """

    name: str
    instance: str
    version: str
    began: datetime | None
    heard: datetime | None
    seconds: dict[str, float]

    def sends(self, now: datetime) -> bool:
        """Return whether the replica has sent data recently; a replica without requests sends none."""
        return self.heard is not None and now - self.heard < _SILENT


def render(context: Context) -> Page:
    """Return the replicas page of one service."""
    return service_page(context, "replicas", lambda: _body(context))


def loads_of(context: Context) -> pd.DataFrame:
    """Return the start reports of the replicas, within the scope of the address."""
    read, view = context.source.read, context.view
    found = context.source.cached(read.loads, context.service or "", view.text("env"))
    return found[found["version"] == view.scope["v"]] if "v" in view.scope else found


def _body(context: Context) -> list[Node]:
    found = loads_of(context)
    if found.empty:
        text = "An agent reports its process after the first request."
        return [card(None, empty("No start of a replica was reported", text))]
    return [
        _finding(context),
        panel("Replicas", lambda: _replicas_card(context, replicas(found))),
        panel("What was loaded", lambda: _loads_card(context, found[found["phase"] != LOAD_START.key])),
    ]


def replicas(found: pd.DataFrame) -> list[Replica]:
    """Return the replicas in the start reports *found*, most recently started first."""
    found_replicas = [_replica(records(rows)) for _, rows in found.groupby("instance", sort=False)]
    return sorted(found_replicas, key=lambda each: each.began.timestamp() if each.began else 0.0, reverse=True)


def _replica(rows: Sequence[dict[str, object]]) -> Replica:
    seconds: dict[str, float] = {}
    for row in rows:
        phase = str(row["phase"])
        seconds[phase] = seconds.get(phase, 0.0) + float(str(row["seconds"]))
    began = next((row["started"] for row in rows if row["phase"] == LOAD_START.key), None)
    name, instance, version = (str(rows[0][key]) for key in ("place", "instance", "version"))
    return Replica(name, instance, version, _python(began), _python(rows[0]["heard"]), seconds)


def _python(at: object) -> datetime | None:
    return at.to_pydatetime(warn=False) if isinstance(at, pd.Timestamp) else None


def _finding(context: Context) -> Component | None:
    """Return the line on p99 without cold requests; None if there are no cold requests."""
    read = context.source.read
    everything, warm, cold = (
        context.source.cached(read.latency, replace(context.selection, cold=kind))
        for kind in (None, WITHOUT_COLD, ONLY_COLD)
    )
    quantile = next(
        (each for each in (context.view.percentile, 0.95, 0.9) if has_enough_samples(warm.count, each)), 0.5
    )
    found, left = everything.quantile(quantile), warm.quantile(quantile)
    if not cold.count or found is None:
        return None
    first = f"{percentile(quantile)} is {duration(found.value)}"
    first += f", and {duration(left.value)} without cold requests." if left else "; all requests were cold."
    rest = f"{several(cold.count, 'request')} of {count(everything.count)} included loading or warm-up."
    inside = [html.Div(first, className="big"), html.Div(rest, className="muted")]
    return html.Div(html.Div(inside, className="say"), className="verdict")


def _replicas_card(context: Context, found: Sequence[Replica]) -> Component:
    now = context.source.now()
    sending = sum(each.sends(now) for each in found)
    head = [("", ""), ("Replica", ""), ("Version", "hide"), ("Started", "r"), ("Age", "r"), (LOAD_START.label, "r")]
    head += [(phase.label, "r") for phase in _LOADING]
    rows = [_replica_row(context, each) for each in found[:_MAX_REPLICAS]]
    sub = f"{sending} sending · each phase without nested phases"
    sub += f" · the newest {_MAX_REPLICAS} of {len(found)}" if len(found) > _MAX_REPLICAS else ""
    return card("Replicas", table(head, rows, "Replicas"), sub=sub, flush=True)


def _replica_row(context: Context, found: Replica) -> Component:
    now = context.source.now()
    sends, began = found.sends(now), found.began
    shape, word = ("good", "Sending") if sends else ("none", "Silent")
    cells: list[Component] = [
        html.Td(html.Span([html.I(className=f"dot {shape}"), word], className=f"pill {shape}")),
        html.Td(found.name, className="mono", title=found.instance),
        html.Td(found.version, className="hide"),
        html.Td(day(began.astimezone(context.view.zone)) if began else UNKNOWN, className="r"),
        html.Td(span(now - began) if began and sends else UNKNOWN, className="r"),
    ]
    phases = (LOAD_START, *_LOADING)
    seconds = (found.seconds.get(phase.key) for phase in phases)
    cells += [html.Td(UNKNOWN if each is None else duration(each), className="r") for each in seconds]
    return html.Tr(cells)


def _loads_card(context: Context, found: pd.DataFrame) -> Component:
    if found.empty:
        return card("What was loaded", empty("No load took 1 ms or longer"))
    head = [("Ended", ""), ("Replica", ""), ("Phase", ""), ("Model", ""), ("Input", "hide"), ("Took", "r")]
    rows = [_load_row(context, each) for each in records(found.head(_MAX_LOADS))]
    sub = f"the last {_MAX_LOADS} of {len(found)}" if len(found) > _MAX_LOADS else None
    return card("What was loaded", table(head, rows, "What was loaded"), sub=sub, flush=True)


def _load_row(context: Context, load: dict[str, object]) -> Component:
    ended = _python(load["ended"])
    phase = LOAD_PHASES.get(str(load["phase"]))
    cells = [
        html.Td(f"{ended.astimezone(context.view.zone):%-d %b %H:%M:%S}" if ended else UNKNOWN, className="nowrap"),
        html.Td(str(load["place"]), className="mono", title=str(load["instance"])),
        html.Td(phase.label if phase else str(load["phase"]), title=phase.text if phase else None),
        html.Td(str(load["model"]) or UNKNOWN),
        html.Td(str(load["shape"]), className="hide mono"),
        html.Td(duration(float(str(load["seconds"]))), className="r"),
    ]
    return html.Tr(cells)
