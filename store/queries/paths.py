"""Queries across services, from retained traces: the requests of a trace, critical paths of slow requests, and calls between services.

Requests of the callers of a service are counted by the attribute `caller` where agents send it; else the callers are those of
retained traces.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Select, func, select

from ...analysis import critical_path
from ...core.attributes import CALLER, attribute_key, split_attribute_key
from ...core.histogram import Histogram
from ...core.names import CALL_FAILURE, ERROR_TYPE, HTTP_STATUS, REQUEST_BY_ATTRIBUTE, STATUS, STATUS_ERROR
from .. import schema
from ..records import RetainedTrace
from ..schema import storable
from ..selection import Selection
from ..storage import PointQuery, StoreSnapshot, add_up
from .fetch import QueryGroup, fetch, request_latency
from .traces import retained_trace, select_documents, select_traces, started_in

_NS = 1_000_000_000
# Maximum number of slow requests whose paths are added up.
MAX_SLOW = 200
# Maximum number of retained requests that a map is made of, the newest: reading them takes a fifth of a second.
MAX_MAPPED = 2000
_IDS_AT_ONCE = 200
# Maximum number of failed requests whose errors and calls are counted.
MAX_FAILED = 200
# Attributes of a failed call that name the called service, best first.
_CALLED = ("peer.service", "server.address", "rpc.service", "db.system.name", "db.system", "messaging.system")


@dataclass(frozen=True, slots=True)
class SlowPaths:
    quantile: float
    value_seconds: float
    requests: int
    complete: int
    missing: Mapping[str, int]
    shares: list[critical_path.PathShare]


@dataclass(frozen=True, slots=True)
class ServiceEdge:
    """Calls of one service to another.

    Args:
        latency: Latency of the calls as the called service counted them; None if its agent does not count callers. [seconds]
        errors: Number of these that failed.
        sampled: Share of this caller in the random retained requests of the called service; None without such requests. [ratio]
        share: Share of the time of the caller's slow retained requests that it waited for this service; None if unknown. [ratio]
    """

    caller: str
    called: str
    latency: Histogram | None
    errors: int
    retained: int
    sampled: float | None
    share: float | None


@dataclass(frozen=True, slots=True)
class RetainedFailures:
    """How retained requests failed."""

    requests: int
    errors: Mapping[str, int]
    called: Mapping[str, int]


class PathQueries(QueryGroup):
    """Queries across services."""

    def requests_of_trace(self, trace_id: str) -> list[RetainedTrace]:
        with self._snapshot() as snapshot:
            traces = schema.traces
            statement = select_documents().where(traces.c.trace_id == storable(trace_id).lower())
            rows = snapshot.connection.execute(
                statement.order_by(traces.c.started, traces.c.span_id).limit(critical_path.MAX_REQUESTS_A_TRACE)
            )
            return [retained_trace(row) for row in rows]

    def slow_paths(self, selection: Selection, percentile: float) -> SlowPaths | None:
        """Return the critical paths of the retained requests that took as long as *percentile* or longer.

        Returns:
            None if no such request is retained.
        """
        with self._snapshot() as snapshot:
            slow_requests = _slow_requests(snapshot, selection, percentile)
            if slow_requests is None:
                return None
            value, by_trace, slow = slow_requests
            calls = _known_calls(root for roots in by_trace.values() for root in roots)
            missing = [critical_path.missing_services(request, calls) for request in slow]
            return SlowPaths(
                percentile,
                value,
                len(slow),
                sum(not services for services in missing),
                dict(Counter(service for services in missing for service in services).most_common()),
                critical_path.path_shares([critical_path.critical_path(request) for request in slow]),
            )

    def dependency_split(self, selection: Selection, percentile: float) -> critical_path.DependencySplit | None:
        """Return what the retained requests as slow as *percentile* or slower called; None if no such request is retained."""
        with self._snapshot() as snapshot:
            slow_requests = _slow_requests(snapshot, selection, percentile)
            return critical_path.split_dependency(slow_requests[2]) if slow_requests else None

    def retained_failures(self, selection: Selection) -> RetainedFailures:
        selection = replace(selection, status=STATUS_ERROR)
        with self._snapshot() as snapshot:
            failed = list(_documents(snapshot, _newest(selection, MAX_FAILED)))
            errors = Counter(filter(None, (_error_of(trace.attributes) for trace in failed)))
            below: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
            statement = select_documents().where(schema.series.c.status == STATUS_ERROR)
            traces = _whole_traces(snapshot, sorted({trace.trace_id for trace in failed}), statement)
            for trace_id, roots in traces.items():
                for request in (request for root in roots for request in root.everything()):
                    services = {called.service for called in request.called if _is_known(called)}
                    below[trace_id, request.request.span_id] = services
            failed_calls = Counter(
                name
                for trace in failed
                for name in below[trace.trace_id, trace.span_id] or set(_failed_calls(trace.spans))
            )
            return RetainedFailures(len(failed), dict(errors.most_common()), dict(failed_calls.most_common()))

    def service_map(self, selection: Selection) -> list[ServiceEdge]:
        """Return which services call which: those that agents counted, and those in the newest 2,000 retained requests."""
        selection = Selection(selection.start, selection.end, environment=selection.environment)
        with self._snapshot() as snapshot:
            counted = _counted_edges(snapshot, selection)
            traced = _TracedEdges(snapshot, selection)
            return [
                ServiceEdge(
                    *edge,
                    *counted.get(edge, (None, 0)),
                    traced.retained[edge],
                    traced.sampled(*edge),
                    traced.share(*edge),
                )
                for edge in sorted({*counted, *traced.retained})
            ]


def traced_request(trace: RetainedTrace) -> critical_path.TracedRequest:
    return critical_path.TracedRequest(
        trace.series.service,
        trace.span_id,
        trace.parent_id,
        trace.started_ns,
        trace.duration_ns,
        trace.stages_ns,
        trace.spans,
    )


def _slow_requests(
    snapshot: StoreSnapshot, selection: Selection, percentile: float
) -> tuple[float, dict[str, list[critical_path.PlacedRequest]], list[critical_path.PlacedRequest]] | None:
    value = request_latency(snapshot, selection).quantile(percentile)
    if value is None:
        return None
    traces = schema.traces
    statement = (
        select_traces(selection)
        .with_only_columns(traces.c.trace_id, traces.c.span_id)
        .where(traces.c.duration >= int(value.low * _NS))
        # A random choice: those whose traces all services retain with the highest probability (`instrumentors.agent.sample`).
        .order_by(func.substr(traces.c.trace_id, 17).desc(), traces.c.span_id)
        .limit(MAX_SLOW)
    )
    wanted = {(row[0], row[1]) for row in snapshot.connection.execute(statement)}
    by_trace = _whole_traces(snapshot, sorted({trace_id for trace_id, _ in wanted}))
    slow = [
        placed
        for trace_id, roots in by_trace.items()
        for root in roots
        for placed in root.everything()
        if (trace_id, placed.request.span_id) in wanted
    ]
    return (value.value, by_trace, slow) if slow else None


def _whole_traces(
    snapshot: StoreSnapshot, trace_ids: list[str], statement: Select[Any] | None = None
) -> dict[str, list[critical_path.PlacedRequest]]:
    statement = select_documents() if statement is None else statement
    by_trace: defaultdict[str, list[RetainedTrace]] = defaultdict(list)
    for first in range(0, len(trace_ids), _IDS_AT_ONCE):
        some = schema.traces.c.trace_id.in_(trace_ids[first : first + _IDS_AT_ONCE])
        for trace in _documents(snapshot, statement.where(some)):
            by_trace[trace.trace_id].append(trace)
    return {
        trace_id: critical_path.place_requests(map(traced_request, requests)) for trace_id, requests in by_trace.items()
    }


def _documents(snapshot: StoreSnapshot, statement: Select[Any]) -> Iterator[RetainedTrace]:
    return map(retained_trace, snapshot.connection.execute(statement))


def _error_of(attributes: Mapping[str, Any]) -> str:
    values = (attributes.get(key) for key in (ERROR_TYPE, HTTP_STATUS, "http.status_code"))
    return next((str(value) for value in values if value), "")


def _failed_calls(spans: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for span in spans:
        attributes = span.get("attributes") or {}
        if failure := attributes.get(CALL_FAILURE):
            # `triton:timeout`
            yield str(failure).partition(":")[0]
        elif attributes.get(STATUS) == STATUS_ERROR or ERROR_TYPE in attributes:
            yield from [str(attributes[key]) for key in _CALLED if attributes.get(key)][:1]


def _newest(selection: Selection, most: int) -> Select[Any]:
    return select_documents().where(*started_in(selection)).order_by(schema.traces.c.started.desc()).limit(most)


def _is_known(called: critical_path.PlacedRequest) -> bool:
    return called.is_direct and called.service != critical_path.ANOTHER_ENVIRONMENT


def _known_calls(roots: Iterable[critical_path.PlacedRequest]) -> dict[str, set[str]]:
    calls: defaultdict[str, set[str]] = defaultdict(set)
    for root in roots:
        for request in root.everything():
            calls[request.service].update(called.service for called in request.called if _is_known(called))
    return calls


def _counted_edges(snapshot: StoreSnapshot, selection: Selection) -> dict[tuple[str, str], tuple[Histogram, int]]:
    prefix = attribute_key(CALLER.key, "")
    question = PointQuery(selection, (REQUEST_BY_ATTRIBUTE,), by="series", prefix=prefix)
    columns = fetch(snapshot, question)
    series = schema.series.c
    owners = {
        row.id: (row.service, row.status)
        for row in snapshot.connection.execute(select(series.id, series.service, series.status))
    }
    edges: dict[tuple[str, str], tuple[Histogram, int]] = {}
    for service in {owners[number][0] for number in set(columns.series.tolist()) if number in owners}:
        for stage, key in enumerate(columns.stages):
            name, caller = split_attribute_key(key)
            of_service = [owners.get(number, ("", ""))[0] == service for number in columns.series.tolist()]
            chosen = columns.where((columns.stage == stage) & of_service)
            # SQLite matches prefixes in any case.
            if caller and name == CALLER.key and len(chosen):
                failed = [owners[number][1] == STATUS_ERROR for number in chosen.series.tolist()]
                edges[caller, service] = (add_up(chosen).histogram(), int(chosen.counts[failed].sum()))
    return edges


class _TracedEdges:
    def __init__(self, snapshot: StoreSnapshot, selection: Selection) -> None:
        self.retained: Counter[tuple[str, str]] = Counter()
        self._random: Counter[tuple[str, str]] = Counter()
        self._waited: Counter[tuple[str, ...]] = Counter()
        self._slow: Counter[str] = Counter()
        by_trace: defaultdict[str, list[RetainedTrace]] = defaultdict(list)
        for trace in _documents(snapshot, _newest(selection, MAX_MAPPED)):
            by_trace[trace.trace_id].append(trace)
        for requests in by_trace.values():
            because = {trace.span_id: trace.because for trace in requests}
            for root in critical_path.place_requests(map(traced_request, requests)):
                # A request whose caller is not retained has an unknown caller.
                if because.get(root.request.span_id) == "uniform" and not root.request.parent_id:
                    self._random["", root.service] += 1
                for placed in root.everything():
                    self._add(placed, because)

    def _add(self, placed: critical_path.PlacedRequest, because: Mapping[str, str]) -> None:
        for called in placed.called:
            if not _is_known(called):
                continue
            edge = placed.service, called.service
            self.retained[edge] += 1
            self._random[edge] += because.get(called.request.span_id) == "uniform"
        if because.get(placed.request.span_id) == "slow":
            self._slow[placed.service] += placed.request.duration
            for piece in critical_path.critical_path(placed):
                self._waited[piece.services[:2]] += piece.end - piece.start

    def sampled(self, caller: str, called: str) -> float | None:
        every = sum(number for (_, service), number in self._random.items() if service == called)
        return self._random[caller, called] / every if every else None

    def share(self, caller: str, called: str) -> float | None:
        whole = self._slow[caller]
        return self._waited[caller, called] / whole if whole else None
