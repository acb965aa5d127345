"""Replicas page: the replica that is slower than the others, latency by replica, and cold starts.

Latency by replica is counted by agents and collectors, also for services whose processes report no start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pandas as pd
from dash import html
from dash.development.base_component import Component

from ...alerts.evaluation.evidence import REPLICA_STEPS, outlier_sentence, slow_replica
from ...analysis.replicas import ReplicaLatency, ReplicaOutlier, ReplicaTable, latencies
from ...core.attributes import REPLICA
from ...core.hardware import GPU, GPU_CLOCK, Measure, host_of
from ...core.histogram import has_enough_samples
from ...core.stages import LOAD_PHASES, LOAD_START
from ..figures.time_axis import gaps_filled
from ..ui.components import Node, card, empty, link, pill, strip, table
from ..ui.format import UNKNOWN, count, day, duration, megahertz, percent, percentile, several, span, times
from ..view import ONLY_COLD, WITHOUT_COLD, attributes_text, service_path
from .hardware import hardware_frame
from .incidents import service_silence
from .page import Context, Page, clock_or_date, panel, records
from .service_frame import service_page

# Agents send every ten seconds, and retry.
_SILENT = timedelta(seconds=60)
# Maximum number of replicas in the list, newest first.
_MAX_REPLICAS, _MAX_LOADS = 50, 100
# Number of replicas on the page of the service.
_FEW_REPLICAS = 5
# Measures of GPUs: title of the column, and format.
_GPU: Mapping[Measure, tuple[str, Callable[[float], str]]] = {
    GPU: ("GPU busy", percent),
    GPU_CLOCK: ("GPU clock", megahertz),
}
_LOADING = tuple(phase for phase in LOAD_PHASES.values() if phase is not LOAD_START)


@dataclass(frozen=True, slots=True)
class Replica:
    name: str  # host and process id, as in the card *Hardware*
    instance: str
    version: str
    began: datetime | None  # start of the process; None if not reported
    heard: datetime | None  # time of its last data; None if long ago
    seconds: dict[str, float]  # duration of each start phase [seconds]

    def sends(self, now: datetime) -> bool:
        return self.heard is not None and now - self.heard < _SILENT


def render(context: Context) -> Page:
    return service_page(context, "replicas", lambda: _body(context))


def loads_of(context: Context) -> pd.DataFrame:
    read, view = context.source.read, context.view
    found = context.source.cached(read.loads, context.service or "", view.text("env"))
    return found[found["version"] == view.scope["v"]] if "v" in view.scope else found


def _body(context: Context) -> list[Node]:
    found = loads_of(context)
    counted = replica_table(context).replicas
    if found.empty and not counted:
        text = "An agent reports its process after the first request."
        return [card(None, empty("No start of a replica was reported", text))]
    shown: list[Node] = [
        _slow_line(context),
        _finding(context),
        panel("Latency by replica", lambda: latency_card(context, _MAX_REPLICAS)) if counted else None,
    ]
    if found.empty:
        return shown
    return [
        *shown,
        panel("Replicas", lambda: _replicas_card(context, replicas(found))),
        panel("What was loaded", lambda: _loads_card(context, found[found["phase"] != LOAD_START.key])),
    ]


def replica_table(context: Context) -> ReplicaTable:
    return context.source.cached(context.source.read.replica_counts, context.selection, REPLICA_STEPS)


def slow_replica_of(context: Context) -> ReplicaOutlier | None:
    return context.source.cached(slow_replica, context.source.read, context.selection)


def slow_sentence(context: Context, found: ReplicaOutlier) -> str:
    return outlier_sentence(found, clock_or_date(datetime.fromtimestamp(found.onset, UTC), context.view))


def _slow_line(context: Context) -> Component | None:
    found = slow_replica_of(context)
    if found is None:
        return None
    # A host has several replicas, and the filter takes one.
    own = attributes_text([(REPLICA.key, found.place)]) if found.place != host_of(found.place) else None
    href = context.view.link("/traces", svc=context.service, at=own, **context.view.scope)
    about: list[Node] = [f"{_version_note(context, found)}{several(found.requests, 'request')} since then. "]
    inside = [
        html.Div(slow_sentence(context, found), className="big"),
        html.Div([*about, link("Its traces →" if own else "Traces →", href=href, className="link")], className="muted"),
    ]
    return html.Div([html.Div(inside, className="say"), _silence(context, found)], className="verdict")


def _silence(context: Context, found: ReplicaOutlier) -> Component | None:
    """Return the action that silences the service because of *found*; incidents are of a service, not of a replica."""
    return service_silence(context, f"slow replica {found.name}")


def _version_note(context: Context, found: ReplicaOutlier) -> str:
    versions = _versions(loads_of(context))
    own = {version for place, version in versions.items() if found.place in (place, host_of(place))}
    counted = [each.place for each in replica_table(context).replicas]
    others = {versions[place] for place in counted if place in versions and found.place not in (place, host_of(place))}
    return (
        f"Only this replica runs version {next(iter(own))}. " if len(own) == 1 and others and not own & others else ""
    )


def _versions(found: pd.DataFrame) -> dict[str, str]:
    newest = found.drop_duplicates("place")
    return {str(place): str(version) for place, version in zip(newest["place"], newest["version"], strict=True)}


def latency_card(context: Context, most: int, *, alone: bool = True, is_stated: bool = False) -> Component:
    """Return the latency of at most *most* replicas, the slow replica and the slowest ones first.

    Without its sentence about the slow replica if the page states it already, *is_stated*.
    """
    slow, view = slow_replica_of(context), context.view

    def is_slow(each: ReplicaLatency) -> bool:
        return slow is not None and slow.place in (each.place, host_of(each.place))

    found = sorted(latencies(replica_table(context)), key=lambda each: not is_slow(each))
    top = max((value for each in found for value in each.medians.tolist() if value == value), default=0.0)  # noqa: PLR0124 - NaN is not equal to itself
    gpus = {measure: each for measure in _GPU if (each := _gpus(context, found, measure, slow))}
    machines = _Machines(_started(context, found), gpus)
    head: list[tuple[Node, str]] = [
        *(("Replica", ""), ("Median over time", ""), ("Requests", "r"), ("p50", "r"), ("p99", "r"), ("vs others", "r")),
        ("Version", "r hide"),
        *((_GPU[measure][0], "hide") for measure in gpus),
        *(("Age", "r hide"), ("Restarts", "r hide")),
    ]
    now = context.source.now()
    ratio = slow.ratio if slow else None
    rows = [_latency_row(each, ratio if is_slow(each) else None, top, machines, now) for each in found[:most]]
    whole = view.link(service_path(context.service or "", "replicas"), **view.scope)
    said = None
    if slow and not alone:
        sentence = None if is_stated else html.P(slow_sentence(context, slow), className="say b")
        said = html.Div([sentence, _silence(context, slow)], className="sentence")
    return card(
        "Latency by replica",
        [said, table(head, rows, "Latency by replica")],
        sub=f"{several(len(found), 'replica')} · one scale up to {duration(top)}",
        tools=None if alone else link("All replicas →", href=whole, className="link"),
        foot=f"{len(found) - most} other replicas are not shown." if len(found) > most and alone else None,
        flush=said is None,
    )


def _latency_row(
    each: ReplicaLatency, slower: float | None, top: float, machines: _Machines, now: datetime
) -> Component:
    known = machines.started.get(each.place)
    age = now - known.began if known and known.began else None
    cells: list[Component] = [
        html.Th(html.Span(each.name, className="mono", title=each.place), scope="row"),
        html.Td(strip([float(value) for value in each.medians], top)),
        html.Td(count(each.requests), className="r"),
        html.Td(duration(each.p50), className="r"),
        html.Td(duration(each.p99), className="r"),
        html.Td(pill(times(slower), "bad") if slower else times(each.ratio), className="r"),
        html.Td(known.version if known else UNKNOWN, className="r hide"),
        *(html.Td(machines.gpu_cell(measure, each.place), className="hide") for measure in machines.gpus),
        html.Td(span(age) if age else UNKNOWN, className="r hide"),
        html.Td(str(known.restarts) if known else UNKNOWN, className="r hide"),
    ]
    return html.Tr(cells)


@dataclass(frozen=True, slots=True)
class _Gpus:
    """Measure of the GPUs of a replica: its mean, and its mean of each time step; NaN is a gap."""

    mean: float
    trend: Sequence[float]


@dataclass(frozen=True, slots=True)
class _Machines:
    """Newest start, and measures of the GPUs, by place; unknown ones are missing."""

    started: Mapping[str, _Started]
    gpus: Mapping[Measure, Mapping[str, _Gpus]]

    def gpu_cell(self, measure: Measure, place: str) -> Node:
        known = self.gpus[measure].get(place)
        if known is None:
            return UNKNOWN
        write, top = _GPU[measure][1], 1.0
        if measure.unit != "1":
            top = max(value for each in self.gpus[measure].values() for value in each.trend if value == value)  # noqa: PLR0124 - NaN is not equal to itself
        return html.Div(
            [strip(known.trend, top, narrow=True), html.Span(write(known.mean), className="num")], className="gauge"
        )


@dataclass(frozen=True, slots=True)
class _Started:
    version: str
    began: datetime | None
    restarts: int


def _started(context: Context, found: Sequence[ReplicaLatency]) -> dict[str, _Started]:
    reported = replicas(loads_of(context))
    running = [host_of(each.place) for each in found]
    starts = [host_of(each.name) for each in reported]
    made: dict[str, _Started] = {}
    for each in reported:
        host = host_of(each.name)
        processes = max(running.count(host), 1)
        made.setdefault(each.name, _Started(each.version, each.began, max(starts.count(host) // processes - 1, 0)))
    return made


def _gpus(
    context: Context, found: Sequence[ReplicaLatency], measure: Measure, slow: ReplicaOutlier | None
) -> dict[str, _Gpus]:
    frame = hardware_frame(context)
    own = frame[frame["measure"] == measure.key]
    own = own.assign(host=[host_of(str(place)) for place in own["place"]])
    steps = gaps_filled(own[["at"]].drop_duplicates(), context.axis_of(frame))["at"]
    by_host = own.pivot_table(index="at", columns="host", values="mean").reindex(steps)
    hosts = [host_of(each.place) for each in found]
    found_gpus = {
        each.place: _Gpus(float(by_host[host].mean()), by_host[host].tolist())
        for each, host in zip(found, hosts, strict=True)
        if host in by_host and hosts.count(host) == 1
    }
    differs = next((each for each in slow.hardware if each.measure is measure), None) if slow else None
    if slow and differs and slow.place in found_gpus:
        found_gpus[slow.place] = replace(found_gpus[slow.place], mean=differs.own)
    return found_gpus


def few_replicas_card(context: Context, *, is_stated: bool = False) -> Component | None:
    if len(replica_table(context).replicas) < 2:  # noqa: PLR2004 - a comparison has two sides
        return None
    return latency_card(context, _FEW_REPLICAS, alone=False, is_stated=is_stated)


def replicas(found: pd.DataFrame) -> list[Replica]:
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
    name, both = percentile(quantile), duration(found.value)
    first = f"{name} is {both}; all requests were cold."
    if left is not None:
        # The value of a bucket is known up to its bounds.
        same = found.low <= left.value <= found.high
        first = f"{name} is {both}, and {duration(left.value)} without cold requests."
        first = f"Cold starts do not affect {name}." if same else first
    rest = f"{several(cold.count, 'request')} of {count(everything.count)} included loading or warm-up."
    inside = [html.Div(first, className="big"), html.Div(rest, className="muted")]
    return html.Div(html.Div(inside, className="say"), className="verdict")


def _replicas_card(context: Context, found: Sequence[Replica]) -> Component:
    now = context.source.now()
    sending = sum(each.sends(now) for each in found)
    head = [("", ""), ("Replica", ""), ("Version", "hide"), ("Started", "r"), ("Age", "r"), (LOAD_START.label, "r")]
    head += [(phase.label, "r") for phase in _LOADING]
    rows = [_replica_row(context, each) for each in found[:_MAX_REPLICAS]]
    sub = f"{sending} sending · each phase excludes nested phases"
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
