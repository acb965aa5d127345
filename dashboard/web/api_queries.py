"""Queries of `GET /api/v1/query/<name>`: parameters, and the function that returns the result as JSON values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, fields
from datetime import datetime
from typing import Any

import pandas as pd

from ...alerts.evaluation.evidence import outlier_sentence
from ...alerts.formatting import moment_of
from ...alerts.reader import Incident
from ...analysis.advice import RANKS
from ...analysis.attributes import SlowRequests, find_causes
from ...analysis.breakdown import share_of
from ...analysis.capacity import Curve
from ...analysis.profile import CodeNode, flame_graph, functions
from ...analysis.replicas import ReplicaOutlier, latencies
from ...core.histogram import Histogram, has_enough_samples
from ...core.names import FIRST_TOKEN, OUTPUT_TOKEN, STREAM_GAP
from ...core.stages import UNEXPLAINED
from ...questions.breakdown import breakdown
from ...store.audit import AuditEntry
from ...store.selection import moment
from ..pages import audit, collectors
from ..pages.advice import advice_for_fleet, advice_for_service, finding_text
from ..pages.capacity import capacity_text, loads_of, request_rates
from ..pages.collectors import CollectorProblem, collector_status
from ..pages.comparison import chosen_pair, compared, grown_at, newest_pair
from ..pages.measures import ServiceRow, urgent_first
from ..pages.overview import has_labels
from ..pages.page import Context
from ..pages.replicas import replica_table, slow_replica_of
from ..pages.service_code import profile_of_selection
from ..pages.service_map import shown_edges
from ..pages.shared_attributes import selected_requests
from ..pages.slo_spent import stage_budget_use
from ..pages.traces import TRACES_PER_PAGE, find_traces
from ..pages.waste import waste_of
from .api_formats import NOT_FOUND, BadRequestError, percentiles, refuse, required, table_json
from .shell import last_data

Arguments = dict[str, str]
_WINDOW = ("from", "to", "env")
_PART = ("model", "route", "cold")
_OF_TRACES = ("dom", "err", "min", "max", "at", "t", "n")
_DEFAULT_PERCENTILES = "50,90,95,99"
_DEFAULT_TAIL = "99"
_FUNCTIONS = [
    *("stage", "module", "function", "file", "line", "tail_self_seconds", "tail_total_seconds", "median_self_seconds"),
    *("median_total_seconds", "share", "stage_option"),
]
_CAUSES = [
    *("attribute", "values", "value", "requests", "slow_requests", "share_all", "share_slow", "lift"),
    *("explained_share", "p_value", "with_seconds", "without_seconds"),
]
_LATENCY = ["percentile", "value_seconds", "low_seconds", "high_seconds", "enough"]
_TOKENS = ["measure", "definition", "requests", *_LATENCY]
# Measures of streamed responses, by the name of their metric.
_STREAMS = {"first_token": FIRST_TOKEN, "output_token": OUTPUT_TOKEN, "gap": STREAM_GAP}
_REPLICAS = ["replica", "place", "requests", "p50_seconds", "p99_seconds", "ratio"]
_BUDGETS = ["stage", "budget_seconds", "seconds", "mean_seconds", "over_seconds"]
_SHARES = ["service", "stage", "mean_seconds", "share"]
_EDGES = [
    *("caller", "called", "requests_per_second", "counted", "p50_seconds", "p99_seconds", "error_ratio"),
    *("share_of_slow_requests", "retained"),
]
_FLEET = [
    *("service", "kind", "model", "state", "reason", "requests", "requests_per_second", "error_ratio", "p50_seconds"),
    *("p99_seconds", "p99_change", "slowest_stage", "stage_share", "unexplained_share", "slo", "budget_left"),
    *("burn_1h", "p99_change_certain"),
]
_INCIDENTS = [
    *("id", "service", "environment", "state", "severity", "kind", "name", "headline", "stage", "version", "since"),
    *("opened_at", "resolved_at", "acked_by", "muted", "link", "status", "story"),
]
_INCIDENT_STATES = ("open", "resolved", "all")
# Number of known names in an error.
_MAX_NAMED = 5
_STEPS = {"n": "requests", "rate": "requests_per_second", "latency": "value_seconds"}
_ADVICE = [
    *("service", "stage", "title", "reason", "before_seconds", "after_seconds", "gain", "largest_gain", "options"),
    "mark",
]
_COLLECTORS = ["collector", "version", "state", "problem", "fix", "since"]
_WASTE = [
    *("service", "idle_cost", "idle_share", "queue_seconds"),
    *("failed_calls", "failed_seconds", "load_seconds", "load_cost"),
]


@dataclass(frozen=True, slots=True)
class ApiQuery:
    keys: tuple[str, ...]
    answer: Callable[[Context, Arguments], dict[str, Any]]
    about_one: bool = True
    about_window: bool = True
    path: str = "/"  # path of the page with the same data, which determines whether a response is current


def _breakdown(context: Context, given: Arguments) -> dict[str, Any]:
    wanted = percentiles(given.get("p") or _DEFAULT_PERCENTILES)
    means = context.source.cached(breakdown, context.source.read, context.selection, wanted)
    return {"requests": means.requests, **table_json(means.table), "shares": means.shares.to_dict("records")}


def _stalls(context: Context, given: Arguments) -> dict[str, Any]:
    wanted = percentiles(given.get("p") or _DEFAULT_PERCENTILES)
    return table_json(context.source.cached(context.source.read.stalls, context.selection, wanted))


def _profile(context: Context, given: Arguments) -> dict[str, Any]:
    wanted, selected = _slow_requests(context, given)
    bands = context.source.cached(context.source.read.profile, context.selection, (0.5, wanted))
    median, tail = bands or (None, None)
    if tail and selected:
        tail = profile_of_selection(context, selected)
    function_times = functions(tail, median) if tail else []
    stages = dict.fromkeys(function.stage for function in function_times)
    rows = [
        (
            *(
                function.stage,
                function.module,
                function.function,
                function.file,
                function.line,
                function.tail_self_ms / 1e3,
            ),
            *(
                function.tail_total_ms / 1e3,
                _as_seconds(function.median_self_ms),
                _as_seconds(function.median_total_ms),
            ),
            *(function.share, function.stage_option),
        )
        for function in function_times
    ]
    return {
        "percentile": None if selected else wanted,
        "value_seconds": tail.latency if tail else None,
        "sampled_requests": round(tail.sampled) if tail else 0,
        **table_json(pd.DataFrame(rows, columns=_FUNCTIONS)),
        "flame": [_flame_json(flame_graph(stage, tail, median)) for stage in stages if tail],
    }


def _shared(context: Context, given: Arguments) -> dict[str, Any]:
    wanted, selected = _slow_requests(context, given)
    counts = context.source.cached(context.source.read.attributes, context.selection)
    causes = find_causes(counts, selected or wanted)
    rows = [
        (
            *(
                cause.key,
                list(cause.values),
                cause.value,
                cause.requests,
                cause.slow,
                cause.share_all,
                cause.share_slow,
            ),
            *(cause.lift, cause.explained, cause.p_value, _as_seconds(cause.with_ms), _as_seconds(cause.without_ms)),
        )
        for cause in causes.causes
    ]
    return {
        "percentile": causes.percentile,
        "asked_percentile": causes.asked,
        "reason": causes.reason,
        "threshold_seconds": causes.threshold,
        "requests": causes.requests,
        "slow_requests": causes.slow,
        "summary": causes.sentence,
        **table_json(pd.DataFrame(rows, columns=_CAUSES)),
        "no_difference_in": list(causes.compared),
    }


def _slow_requests(context: Context, given: Arguments) -> tuple[float, SlowRequests | None]:
    return _one_percentile(given), selected_requests(context.view)


def _one_percentile(given: Arguments) -> float:
    first, *others = percentiles(given.get("p") or _DEFAULT_TAIL)
    if others:
        refuse(f"p is {given['p'][:60]!r}", "p", "one percentile, such as 99; call again for another one")
    return first


def _as_seconds(ms: float | None) -> float | None:
    return None if ms is None else ms / 1e3


def _flame_json(node: CodeNode) -> dict[str, Any]:
    return {
        "name": node.name,
        "place": node.place,
        "tail_seconds": node.tail_ms / 1e3,
        "median_seconds": _as_seconds(node.median_ms),
        "children": [_flame_json(child) for child in node.children],
    }


def _replicas(context: Context, _: Arguments) -> dict[str, Any]:
    slow = slow_replica_of(context)
    rows = [
        (replica.name, replica.place, replica.requests, replica.p50, replica.p99, replica.ratio)
        for replica in latencies(replica_table(context))
    ]
    table = table_json(pd.DataFrame(rows, columns=_REPLICAS))
    return {"slow": None if slow is None else _slow_json(slow), **table}


def _in_flight(context: Context, _: Arguments) -> dict[str, Any]:
    rows = context.source.cached(context.source.read.open_requests, context.selection)
    return {
        "at": rows.attrs["at"],
        "requests": int(rows["requests"].sum()),
        "oldest_seconds": float(rows["oldest_seconds"].max()) if len(rows) else None,
        "stopped": table_json(context.source.cached(context.source.read.stopped, context.selection))["rows"],
        **table_json(rows),
    }


def _slow_json(slow: ReplicaOutlier) -> dict[str, Any]:
    return {
        "replica": slow.name,
        "place": slow.place,
        "summary": outlier_sentence(slow, moment_of(slow.onset)),
        "percentile": slow.quantile,
        "ratio": slow.ratio,
        "value_seconds": slow.seconds,
        "others_seconds": slow.others_seconds,
        "others": slow.others,
        "requests": slow.requests,
        "since": moment(slow.onset),
        "stages": [
            {"stage": growth.stage, "delta_seconds": growth.seconds, "share": growth.share} for growth in slow.growth
        ],
        "hardware": [
            {
                "measure": difference.measure.key,
                "value": difference.own,
                "others": difference.others,
                "unit": difference.measure.unit,
            }
            for difference in slow.hardware
        ],
    }


def _latency(context: Context, given: Arguments) -> dict[str, Any]:
    wanted = percentiles(given.get("p") or _DEFAULT_PERCENTILES)
    counted = context.source.cached(context.source.read.latency, context.selection)
    values = [_quantile(counted, quantile) for quantile in wanted]
    return {"requests": counted.count, **table_json(pd.DataFrame(values, columns=_LATENCY))}


def _quantile(counted: Histogram, quantile: float) -> tuple[float, float | None, float | None, float | None, bool]:
    estimate = counted.quantile(quantile)
    if estimate is None:
        return quantile, None, None, None, False
    return quantile, estimate.value, estimate.low, estimate.high, has_enough_samples(counted.count, quantile)


def _tokens(context: Context, given: Arguments) -> dict[str, Any]:
    wanted = percentiles(given.get("p") or _DEFAULT_PERCENTILES)
    values = [
        (measure, definition, counted.count, *_quantile(counted, quantile))
        for measure, metric in _STREAMS.items()
        for definition, counted in context.source.cached(context.source.read.streams, context.selection, metric).items()
        for quantile in wanted
    ]
    return table_json(pd.DataFrame(values, columns=_TOKENS))


def _compare(context: Context, given: Arguments) -> dict[str, Any]:
    if given.get("a") or given.get("b"):
        pair = chosen_pair(context, required(given, "a"), required(given, "b"))
    else:
        pair = newest_pair(context)
    if pair is None:
        msg = "two versions or windows to compare are missing"
        fix = "set a and b to a known version, or a window such as 2026-11-21T12:00/6h"
        raise BadRequestError(msg, key="a", fix=fix, status=NOT_FOUND)
    wanted = _one_percentile(given) if given.get("p") else None
    comparison = compared(context, pair, wanted)
    return {
        "a": {"name": pair.a_name, "from": pair.a.start, "to": pair.a.end},
        "b": {"name": pair.b_name, "from": pair.b.start, "to": pair.b.end},
        "same_time": pair.together,
        "percentile": comparison.quantile,
        "verdict": comparison.verdict,
        "summary": dict(comparison.stages.attrs),
        **table_json(comparison.stages),
        "functions": [
            {
                "stage": function.stage,
                "function": function.title,
                "a_seconds": function.before_ms / 1e3,
                "b_seconds": function.after_ms / 1e3,
                "share": function.share,
            }
            for function in grown_at(context, pair, comparison.quantile)
        ],
    }


def _critical_path(context: Context, given: Arguments) -> dict[str, Any]:
    wanted = _one_percentile(given)
    slow_paths = context.source.cached(context.source.read.slow_paths, context.selection, wanted)
    return {
        "percentile": wanted,
        "value_seconds": slow_paths.value_seconds if slow_paths else None,
        "traces": slow_paths.requests if slow_paths else 0,
        "complete_traces": slow_paths.complete if slow_paths else 0,
        "missing": dict(slow_paths.missing) if slow_paths else {},
        **table_json(
            pd.DataFrame([astuple(path) for path in slow_paths.shares] if slow_paths else [], columns=_SHARES)
        ),
    }


def _map(context: Context, _: Arguments) -> dict[str, Any]:
    edges = shown_edges(context)
    rows = [
        (
            *(edge.edge.caller, edge.edge.called, edge.rate, edge.is_counted, edge.p50, edge.p99, edge.errors),
            *(edge.edge.share, edge.edge.retained),
        )
        for edge in edges
    ]
    return table_json(pd.DataFrame(rows, columns=_EDGES))


def _traces(context: Context, given: Arguments) -> dict[str, Any]:
    traces = find_traces(context)
    pages = max(-(-traces.matching // TRACES_PER_PAGE), 1)
    if int(given.get("n", "1")) > pages:
        refuse(f"n is {given['n'][:60]}, but there are {pages} pages", "n", f"1 to {pages}")
    return {
        "matching": traces.matching,
        "searched": traces.searched,
        "retained": traces.retained,
        "values": {**traces.dimensions, **{f"attribute.{key}": values for key, values in traces.attributes.items()}},
        **table_json(traces.page),
    }


def _waste(context: Context, _given: Arguments) -> dict[str, Any]:
    costs, shown = context.source.costs, [row for row in urgent_first(context) if has_labels(context, row.service)]
    rows = [
        (
            *(waste.service, waste.idle_cost, None if waste.busy is None else 1 - waste.busy, waste.queue_seconds),
            *(waste.failed_calls, waste.failed_seconds, waste.load_seconds, waste.load_cost),
        )
        for waste in waste_of(context, shown)
    ]
    labels = {row.service: context.source.labels().get(row.service, {}) for row in shown}
    return {
        "currency": costs.currency if costs else None,
        "labels": labels,
        **table_json(pd.DataFrame(rows, columns=_WASTE)),
    }


def _fleet(context: Context, _given: Arguments) -> dict[str, Any]:
    shown = [row for row in urgent_first(context) if has_labels(context, row.service)]
    return table_json(pd.DataFrame([_fleet_row(row) for row in shown], columns=_FLEET))


def _fleet_row(row: ServiceRow) -> tuple[Any, ...]:
    now, slo, spent, change = row.now, row.slo, row.now.tail_stages, row.p99_compared
    slowest = max(spent, key=lambda stage: spent[stage], default=None)
    return (
        *(row.service, row.seen.kind, row.seen.model, row.state, row.status.note),
        *(now.requests, now.requests / row.seconds, now.error_ratio, now.p50, now.p99, change and change.growth),
        *(slowest, share_of(spent, slowest) if slowest else None),
        sum(share_of(spent, stage) for stage in UNEXPLAINED) if spent else None,
        *((slo.slo.name, slo.budget_left, slo.burn_1h) if slo else (None, None, None)),
        change and change.has_changed,
    )


def _incidents(context: Context, given: Arguments) -> dict[str, Any]:
    actions = context.source.incident_actions
    if given.get("id"):
        incident = actions.incident(given["id"])
        if incident is None:
            fix = ", ".join(incident.id for incident in actions.incidents()[:_MAX_NAMED]) or "there are no incidents"
            refuse(f"there is no incident {given['id'][:60]}", "id", fix, NOT_FOUND)
        return {"incident": incident, **table_json(_incident_table([incident]))}
    state = given.get("state", "all")
    if state not in _INCIDENT_STATES:
        refuse(f"state is {state[:60]!r}", "state", ", ".join(_INCIDENT_STATES))
    view = context.view
    if given.keys() & {"from", "to"}:
        incidents = actions.between(view.start, view.past_end)
    else:
        incidents = actions.incidents(open_only=state == "open")
    wanted = {key: given[key] for key in ("service", "severity") if key in given}
    rows = [
        incident
        for incident in incidents
        if state in ("all", incident.state) and all(getattr(incident, key) == value for key, value in wanted.items())
    ]
    return table_json(_incident_table(sorted(rows, key=lambda incident: incident.order)))


def _incident_table(incidents: Sequence[Incident]) -> pd.DataFrame:
    columns = [key for key in _INCIDENTS if key not in ("environment", "stage")]
    rows = [
        {key: getattr(incident, key) for key in columns}
        | {"environment": incident.where.get("environment", ""), "stage": incident.blamed and incident.blamed.stage}
        for incident in incidents
    ]
    return pd.DataFrame(rows, columns=_INCIDENTS)


def _capacity(context: Context, _given: Arguments) -> dict[str, Any]:
    loads, rates = loads_of(context), request_rates(context)
    curve, capacity = loads.now.curve, loads.now.capacity
    first, rest = capacity_text(loads, rates)
    return {
        "version": loads.now.version,
        "percentile": loads.quantile,
        "threshold_seconds": loads.threshold_seconds,
        "summary": f"{first} {rest}".strip(),
        "requests_per_second": rates[-1] if rates else None,
        "capacity": capacity,
        "knee": curve.knee if isinstance(curve, Curve) and curve.knee_is_sure else None,
        "saturation": curve.saturation if isinstance(curve, Curve) else None,
        **table_json(loads.now.steps.rename(columns=_STEPS)),
    }


def _advice(context: Context, given: Arguments) -> dict[str, Any]:
    rank = given.get("rank", RANKS[0])
    if rank not in RANKS:
        refuse(f"rank is {rank[:60]!r}", "rank", ", ".join(RANKS))
    advice = advice_for_service(context, rank) if context.service else advice_for_fleet(context, rank)[0]
    rows = [
        (
            *(advice_entry.finding.facts.service, advice_entry.finding.stage, *finding_text(advice_entry.finding)),
            *((advice_entry.reach.before, advice_entry.reach.after) if advice_entry.reach else (None, None)),
            *(
                advice_entry.gain(rank),
                advice_entry.ceiling(rank),
                [option.name for option in advice_entry.finding.family.options],
            ),
            advice_entry.mark.state if advice_entry.mark and advice_entry.is_hidden(context.view.now) else None,
        )
        for advice_entry in advice
    ]
    return {"rank": rank, **table_json(pd.DataFrame(rows, columns=_ADVICE))}


def _collectors(context: Context, _given: Arguments) -> dict[str, Any]:
    source = context.source
    source.access.require_admin()
    statuses = [collector_status(report, source.now()) for report in source.read.collectors()]
    rows = [
        (
            collector.report.name,
            collector.report.version,
            collector.state,
            problem.text if problem else None,
            *_fix_since(problem),
        )
        for collector in statuses
        for problem in collector.troubles or (None,)
    ]
    return {
        "last_received": last_data(context, source.state()),
        "slo_file_problems": source.slo_problems(),
        **table_json(pd.DataFrame(rows, columns=_COLLECTORS)),
    }


def _fix_since(problem: CollectorProblem | None) -> tuple[str | None, datetime | None]:
    return (problem.fix, problem.since) if problem else (None, None)


def _slo(context: Context, given: Arguments) -> dict[str, Any]:
    statuses = [
        status
        for status in context.source.slos()
        if given.get("service") in (None, status.slo.service) and given.get("name") in (None, status.slo.name)
    ]
    if given.get("name") and not statuses:
        raise _no_objective(context, given["name"])
    return {"objectives": statuses}


def _budgets(context: Context, given: Arguments) -> dict[str, Any]:
    name = required(given, "name")
    slo = next((status.slo for status in context.source.slos() if status.slo.name == name), None)
    if slo is None:
        raise _no_objective(context, name)
    if not slo.budgets:
        msg = f"the objective {name} has no budgets"
        fix = "add budgets to the SLO file, such as budgets: {queue: 50ms}"
        raise BadRequestError(msg, key="name", fix=fix, status=NOT_FOUND)
    split = stage_budget_use(Context(context.view, context.source, slo.service), slo)
    objective = {"objective": slo.objective, "threshold_seconds": slo.threshold_seconds}
    if split is None:
        return objective | {"requests": 0, **table_json(pd.DataFrame(columns=_BUDGETS))}
    uses = [(use.stage, use.budget_seconds, use.seconds, use.mean_seconds, use.over_seconds) for use in split.uses]
    return {
        **objective,
        "requests": split.requests,
        "enough": has_enough_samples(split.requests, slo.objective),
        "value_seconds": split.seconds,
        "mean_seconds": split.mean_seconds,
        "rest_seconds": split.rest_seconds,
        "rest_mean_seconds": split.rest_mean_seconds,
        **table_json(pd.DataFrame(uses, columns=_BUDGETS)),
    }


def _audit(context: Context, _given: Arguments) -> dict[str, Any]:
    context.source.access.require_admin()
    entries = audit.audit_entries(context)
    names = [field.name for field in fields(AuditEntry)]
    frame = pd.DataFrame([[getattr(entry, name) for name in names] for entry in entries], columns=names)
    return {"most": audit.MAX_ENTRIES, **table_json(frame)}


def _no_objective(context: Context, name: str) -> BadRequestError:
    names = ", ".join(status.slo.name for status in context.source.slos()) or "none are set"
    return BadRequestError(f"there is no objective {name}", key="name", fix=names, status=NOT_FOUND)


QUERIES: dict[str, ApiQuery] = {
    "breakdown": ApiQuery(("service", "version", *_PART, "p", *_WINDOW), _breakdown),
    "profile": ApiQuery(("service", "version", *_PART, "p", "sel", *_WINDOW), _profile),
    "shared": ApiQuery(("service", "version", *_PART, "p", "sel", *_WINDOW), _shared),
    "stalls": ApiQuery(("service", "version", *_PART, "p", *_WINDOW), _stalls),
    "latency": ApiQuery(("service", "version", *_PART, "p", *_WINDOW), _latency),
    "tokens": ApiQuery(("service", "version", *_PART, "p", *_WINDOW), _tokens),
    "critical_path": ApiQuery(("service", "version", *_PART, "p", *_WINDOW), _critical_path),
    "map": ApiQuery(_WINDOW, _map, about_one=False),
    "compare": ApiQuery(("service", "a", "b", *_PART, "p", *_WINDOW), _compare, about_window=False),
    "replicas": ApiQuery(("service", "version", *_PART, *_WINDOW), _replicas),
    "in_flight": ApiQuery(("service", "version", *_PART, *_WINDOW), _in_flight),
    "traces": ApiQuery(("service", "version", *_PART, *_OF_TRACES, *_WINDOW), _traces, about_one=False),
    "waste": ApiQuery(("at", *_WINDOW), _waste, about_one=False),
    "slo": ApiQuery(("service", "name"), _slo, about_one=False),
    "budgets": ApiQuery(("name", "version", "from", "to"), _budgets, about_one=False),
    "fleet": ApiQuery(("at", *_WINDOW), _fleet, about_one=False),
    "incidents": ApiQuery(
        ("service", "state", "severity", "id", "from", "to"),
        _incidents,
        about_one=False,
        about_window=False,
        path="/incidents",
    ),
    "capacity": ApiQuery(("service", "version", *_PART, *_WINDOW), _capacity),
    "advice": ApiQuery(("service", "version", *_PART, "rank", *_WINDOW), _advice, about_one=False),
    "collectors": ApiQuery((), _collectors, about_one=False, about_window=False, path=collectors.PLACE),
    "audit": ApiQuery(("from", "to"), _audit, about_one=False, path=audit.PLACE),
}
