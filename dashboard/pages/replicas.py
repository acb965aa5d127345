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
    loads = context.source.cached(read.loads, context.service or "", view.text("env"))
    return loads[loads["version"] == view.scope["v"]] if "v" in view.scope else loads


def _body(context: Context) -> list[Node]:
    loads = loads_of(context)
    counted = replica_table(context).replicas
    if loads.empty and not counted:
        text = "An agent reports its process after the first request."
        return [card(None, empty("No start of a replica was reported", text))]
    shown: list[Node] = [
        _slow_line(context),
        _finding(context),
        panel("Latency by replica", lambda: latency_card(context, _MAX_REPLICAS)) if counted else None,
    ]
    if loads.empty:
        return shown
    return [
        *shown,
        panel("Replicas", lambda: _replicas_card(context, replicas(loads))),
        panel("What was loaded", lambda: _loads_card(context, loads[loads["phase"] != LOAD_START.key])),
    ]


def replica_table(context: Context) -> ReplicaTable:
    return context.source.cached(context.source.read.replica_counts, context.selection, REPLICA_STEPS)


def slow_replica_of(context: Context) -> ReplicaOutlier | None:
    return context.source.cached(slow_replica, context.source.read, context.selection)


def slow_sentence(context: Context, outlier: ReplicaOutlier) -> str:
    return outlier_sentence(outlier, clock_or_date(datetime.fromtimestamp(outlier.onset, UTC), context.view))


def _slow_line(context: Context) -> Component | None:
    outlier = slow_replica_of(context)
    if outlier is None:
        return None
    # A host has several replicas, and the filter takes one.
    attribute = attributes_text([(REPLICA.key, outlier.place)]) if outlier.place != host_of(outlier.place) else None
    href = context.view.link("/traces", svc=context.service, at=attribute, **context.view.scope)
    about: list[Node] = [f"{_version_note(context, outlier)}{several(outlier.requests, 'request')} since then. "]
    inside = [
        html.Div(slow_sentence(context, outlier), className="big"),
        html.Div(
            [*about, link("Its traces →" if attribute else "Traces →", href=href, className="link")], className="muted"
        ),
    ]
    return html.Div([html.Div(inside, className="say"), _silence(context, outlier)], className="verdict")


def _silence(context: Context, outlier: ReplicaOutlier) -> Component | None:
    """Return the action that silences the service because of *outlier*; incidents are of a service, not of a replica."""
    return service_silence(context, f"slow replica {outlier.name}")


def _version_note(context: Context, outlier: ReplicaOutlier) -> str:
    versions = _versions(loads_of(context))
    own_versions = {version for place, version in versions.items() if outlier.place in (place, host_of(place))}
    counted = [counts.place for counts in replica_table(context).replicas]
    others = {
        versions[place] for place in counted if place in versions and outlier.place not in (place, host_of(place))
    }
    return (
        f"Only this replica runs version {next(iter(own_versions))}. "
        if len(own_versions) == 1 and others and not own_versions & others
        else ""
    )


def _versions(loads: pd.DataFrame) -> dict[str, str]:
    newest = loads.drop_duplicates("place")
    return {str(place): str(version) for place, version in zip(newest["place"], newest["version"], strict=True)}


def latency_card(context: Context, most: int, *, alone: bool = True, is_stated: bool = False) -> Component:
    """Return the latency of at most *most* replicas, the slow replica and the slowest ones first.

    Without its sentence about the slow replica if the page states it already, *is_stated*.
    """
    slow, view = slow_replica_of(context), context.view

    def is_slow(replica: ReplicaLatency) -> bool:
        return slow is not None and slow.place in (replica.place, host_of(replica.place))

    ranked = sorted(latencies(replica_table(context)), key=lambda replica: not is_slow(replica))
    top = max((value for replica in ranked for value in replica.medians.tolist() if value == value), default=0.0)  # noqa: PLR0124 - NaN is not equal to itself
    gpus = {measure: by_place for measure in _GPU if (by_place := _gpus(context, ranked, measure, slow))}
    machines = _Machines(_started(context, ranked), gpus)
    head: list[tuple[Node, str]] = [
        *(("Replica", ""), ("Median over time", ""), ("Requests", "r"), ("p50", "r"), ("p99", "r"), ("vs others", "r")),
        ("Version", "r hide"),
        *((_GPU[measure][0], "hide") for measure in gpus),
        *(("Age", "r hide"), ("Restarts", "r hide")),
    ]
    now = context.source.now()
    ratio = slow.ratio if slow else None
    rows = [_latency_row(replica, ratio if is_slow(replica) else None, top, machines, now) for replica in ranked[:most]]
    whole = view.link(service_path(context.service or "", "replicas"), **view.scope)
    summary = None
    if slow and not alone:
        sentence = None if is_stated else html.P(slow_sentence(context, slow), className="say b")
        summary = html.Div([sentence, _silence(context, slow)], className="sentence")
    return card(
        "Latency by replica",
        [summary, table(head, rows, "Latency by replica")],
        sub=f"{several(len(ranked), 'replica')} · one scale up to {duration(top)}",
        tools=None if alone else link("All replicas →", href=whole, className="link"),
        foot=f"{len(ranked) - most} other replicas are not shown." if len(ranked) > most and alone else None,
        flush=summary is None,
    )


def _latency_row(
    replica: ReplicaLatency, slower: float | None, top: float, machines: _Machines, now: datetime
) -> Component:
    started = machines.started.get(replica.place)
    age = now - started.began if started and started.began else None
    cells: list[Component] = [
        html.Th(html.Span(replica.name, className="mono", title=replica.place), scope="row"),
        html.Td(strip([float(value) for value in replica.medians], top)),
        html.Td(count(replica.requests), className="r"),
        html.Td(duration(replica.p50), className="r"),
        html.Td(duration(replica.p99), className="r"),
        html.Td(pill(times(slower), "bad") if slower else times(replica.ratio), className="r"),
        html.Td(started.version if started else UNKNOWN, className="r hide"),
        *(html.Td(machines.gpu_cell(measure, replica.place), className="hide") for measure in machines.gpus),
        html.Td(span(age) if age else UNKNOWN, className="r hide"),
        html.Td(str(started.restarts) if started else UNKNOWN, className="r hide"),
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
        gpu = self.gpus[measure].get(place)
        if gpu is None:
            return UNKNOWN
        write, top = _GPU[measure][1], 1.0
        if measure.unit != "1":
            top = max(value for usage in self.gpus[measure].values() for value in usage.trend if value == value)  # noqa: PLR0124 - NaN is not equal to itself
        return html.Div(
            [strip(gpu.trend, top, narrow=True), html.Span(write(gpu.mean), className="num")], className="gauge"
        )


@dataclass(frozen=True, slots=True)
class _Started:
    version: str
    began: datetime | None
    restarts: int


def _started(context: Context, rows: Sequence[ReplicaLatency]) -> dict[str, _Started]:
    reported = replicas(loads_of(context))
    running = [host_of(latency.place) for latency in rows]
    starts = [host_of(replica.name) for replica in reported]
    started: dict[str, _Started] = {}
    for replica in reported:
        host = host_of(replica.name)
        processes = max(running.count(host), 1)
        started.setdefault(
            replica.name, _Started(replica.version, replica.began, max(starts.count(host) // processes - 1, 0))
        )
    return started


def _gpus(
    context: Context, rows: Sequence[ReplicaLatency], measure: Measure, slow: ReplicaOutlier | None
) -> dict[str, _Gpus]:
    frame = hardware_frame(context)
    measured = frame[frame["measure"] == measure.key]
    measured = measured.assign(host=[host_of(str(place)) for place in measured["place"]])
    steps = gaps_filled(measured[["at"]].drop_duplicates(), context.axis_of(frame))["at"]
    by_host = measured.pivot_table(index="at", columns="host", values="mean").reindex(steps)
    hosts = [host_of(replica.place) for replica in rows]
    found_gpus = {
        replica.place: _Gpus(float(by_host[host].mean()), by_host[host].tolist())
        for replica, host in zip(rows, hosts, strict=True)
        if host in by_host and hosts.count(host) == 1
    }
    differs = (
        next((difference for difference in slow.hardware if difference.measure is measure), None) if slow else None
    )
    if slow and differs and slow.place in found_gpus:
        found_gpus[slow.place] = replace(found_gpus[slow.place], mean=differs.own)
    return found_gpus


def few_replicas_card(context: Context, *, is_stated: bool = False) -> Component | None:
    if len(replica_table(context).replicas) < 2:  # noqa: PLR2004 - a comparison has two sides
        return None
    return latency_card(context, _FEW_REPLICAS, alone=False, is_stated=is_stated)


def replicas(loads: pd.DataFrame) -> list[Replica]:
    all_replicas = [_replica(records(rows)) for _, rows in loads.groupby("instance", sort=False)]
    return sorted(all_replicas, key=lambda replica: replica.began.timestamp() if replica.began else 0.0, reverse=True)


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
        (candidate for candidate in (context.view.percentile, 0.95, 0.9) if has_enough_samples(warm.count, candidate)),
        0.5,
    )
    estimate, left = everything.quantile(quantile), warm.quantile(quantile)
    if not cold.count or estimate is None:
        return None
    name, both = percentile(quantile), duration(estimate.value)
    first = f"{name} is {both}; all requests were cold."
    if left is not None:
        # The value of a bucket is known up to its bounds.
        same = estimate.low <= left.value <= estimate.high
        first = f"{name} is {both}, and {duration(left.value)} without cold requests."
        first = f"Cold starts do not affect {name}." if same else first
    rest = f"{several(cold.count, 'request')} of {count(everything.count)} included loading or warm-up."
    inside = [html.Div(first, className="big"), html.Div(rest, className="muted")]
    return html.Div(html.Div(inside, className="say"), className="verdict")


def _replicas_card(context: Context, shown: Sequence[Replica]) -> Component:
    now = context.source.now()
    sending = sum(replica.sends(now) for replica in shown)
    head = [("", ""), ("Replica", ""), ("Version", "hide"), ("Started", "r"), ("Age", "r"), (LOAD_START.label, "r")]
    head += [(phase.label, "r") for phase in _LOADING]
    rows = [_replica_row(context, replica) for replica in shown[:_MAX_REPLICAS]]
    sub = f"{sending} sending · each phase excludes nested phases"
    sub += f" · the newest {_MAX_REPLICAS} of {len(shown)}" if len(shown) > _MAX_REPLICAS else ""
    return card("Replicas", table(head, rows, "Replicas"), sub=sub, flush=True)


def _replica_row(context: Context, replica: Replica) -> Component:
    now = context.source.now()
    sends, began = replica.sends(now), replica.began
    shape, word = ("good", "Sending") if sends else ("none", "Silent")
    cells: list[Component] = [
        html.Td(html.Span([html.I(className=f"dot {shape}"), word], className=f"pill {shape}")),
        html.Td(replica.name, className="mono", title=replica.instance),
        html.Td(replica.version, className="hide"),
        html.Td(day(began.astimezone(context.view.zone)) if began else UNKNOWN, className="r"),
        html.Td(span(now - began) if began and sends else UNKNOWN, className="r"),
    ]
    phases = (LOAD_START, *_LOADING)
    seconds = (replica.seconds.get(phase.key) for phase in phases)
    cells += [html.Td(UNKNOWN if value is None else duration(value), className="r") for value in seconds]
    return html.Tr(cells)


def _loads_card(context: Context, loads: pd.DataFrame) -> Component:
    if loads.empty:
        return card("What was loaded", empty("No load took 1 ms or longer"))
    head = [("Ended", ""), ("Replica", ""), ("Phase", ""), ("Model", ""), ("Input", "hide"), ("Took", "r")]
    rows = [_load_row(context, record) for record in records(loads.head(_MAX_LOADS))]
    sub = f"the last {_MAX_LOADS} of {len(loads)}" if len(loads) > _MAX_LOADS else None
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
