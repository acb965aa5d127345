"""All queries of pages, alerts and commands on a store, with results in comparable form."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd

from stagelens.core import names
from stagelens.core.histogram import Histogram
from stagelens.store import Indicator, Selection, Store
from stagelens.store.queries.trace_search import TraceFilter
from stagelens.store.queries.windows import WindowQuery

PERCENTILES = (0.5, 0.9, 0.99)
STEP = timedelta(minutes=10)
# Queries whose results depend on the database, the process or the current time; `within` and `together` return readers.
NOT_ASKED = frozenset({"collectors", "storage", "stale_since", "together", "within"})
# Engines add floating-point numbers in different order.
SIGNIFICANT_DIGITS = 10


def query_results(store: Store, around: Selection) -> dict[str, object]:
    read = store.read
    start, end = around.start, around.end
    shop = Selection(start, end, service="shop")
    second = Selection(start, end, service="shop", version="2")
    latency, failures = Indicator("latency", 0.05), Indicator("availability")
    asked: dict[str, object] = {
        "audit": read.audit(start, end, 10),
        "all_minutes": read.all_minutes(start, end),
        "attributes": [read.attributes(each, steps) for each in (shop, second, around) for steps in (1, 7, 60)],
        "bad_breakdown": read.bad_breakdown(shop, 0.01),
        "bad_over_time": read.bad_over_time(shop, 0.01, STEP),
        "batches": read.batches(shop),
        "breakdown": read.breakdown(shop, PERCENTILES),
        "breakdown_with_shares": read.breakdown_with_shares(shop, PERCENTILES),
        "breakdown_over_time": [read.breakdown_over_time(shop, quantile, STEP) for quantile in (0.99, None)],
        "by_band": read.by_band(shop, names.FIRST_TOKEN_BY_INPUT, names.BY_GENERATE),
        "compare": read.compare(shop, second, 0.9),
        "dependency_split": read.dependency_split(shop, 0.5),
        "dimensions": list(read.dimensions(around).items()),
        "dominants": read.dominants(shop, PERCENTILES),
        "engines": read.engines(shop),
        "environments": read.environments(),
        "events": read.events(start, end),
        "exemplars": read.exemplars(shop),
        "first_seen": read.first_seen(shop),
        "first_token_breakdown": read.first_token_breakdown(shop, PERCENTILES),
        "fleet": read.fleet(start, end, PERCENTILES),
        "fleet_latency": read.fleet_latency(start, end),
        "fleet_over_time": read.fleet_over_time(start, end, STEP),
        "fleet_hardware": read.fleet_hardware(start, end, STEP, ("cpu", "gpu")),
        "fleet_counts": read.fleet_counts(around, names.PROBE_DURATION),
        "fleet_waste": read.fleet_waste(start, end),
        "capped_dimensions": read.capped_dimensions(),
        "groups": read.groups(start),
        "hardware": read.hardware(shop, STEP),
        "open_requests": read.open_requests(shop),
        "open_longer_than": read.open_longer_than(shop, 0.5),
        "heat": read.heat(shop, STEP),
        "latency": [read.latency(around), read.latency(second)],
        "latencies": read.latencies([around, second]),
        "loads": read.loads("shop"),
        "minutes": read.minutes(shop),
        "mix": read.mix(shop, second),
        "one_per_cause": read.one_per_cause(shop, 3),
        "profile": read.profile(shop, PERCENTILES),
        "profile_between": read.profile_between(shop, 0.0, 10.0),
        "quantiles_over_time": read.quantiles_over_time(shop, PERCENTILES, STEP),
        "releases": read.releases(),
        "replica_counts": [read.replica_counts(each, steps) for each in (shop, second) for steps in (1, 60)],
        "requests_of_trace": read.requests_of_trace(f"{3:032x}"),
        "revision": read.revision("shop"),
        "revisions": read.revisions(),
        "service_map": read.service_map(around),
        "retained_failures": read.retained_failures(shop),
        "search_traces": read.search_traces(shop, TraceFilter(attributes=(("tenant", ""),))),
        "service_environments": read.service_environments(),
        "services": read.services(start, end),
        "slow_paths": read.slow_paths(shop, 0.5),
        "speed_by_load": read.speed_by_load(shop, names.BY_GENERATE, STEP, 2),
        "sums": read.sums(shop),
        "spent": read.spent(shop, STEP),
        "stage_latency": read.stage_latency(shop),
        "stalls": read.stalls(shop, PERCENTILES),
        "state": _state(store),
        "stopped": read.stopped(shop),
        "streams": [read.streams(shop, metric) for metric in sorted(names.METRICS)],
        "streams_over_time": read.streams_over_time(shop, names.FIRST_TOKEN, names.BY_GENERATE, PERCENTILES, STEP),
        "tallies": read.tallies([shop, second], latency),
        "tally": [read.tally(shop, each) for each in (latency, failures)],
        "tally_series": read.tally_series(shop, latency, STEP),
        "trace": read.trace(f"{3:032x}"),
        "versions": read.versions(shop),
        "whatif": read.whatif(shop, "forward", PERCENTILES),
        "whole": read.whole(start, end),
        "windows": [read.windows(shop, query) for query in _window_queries(start, end)],
    }
    return {question: _comparable(result) for question, result in asked.items()}


def _window_queries(start: datetime, end: datetime) -> list[WindowQuery]:
    first, last = int(start.timestamp()), int(end.timestamp())
    by = ("service", "version", "environment")
    return [
        WindowQuery(range(first, last, 600), 900, 10, by, "requests"),
        WindowQuery(range(first, last, 600), 600, 60, by, "latency", PERCENTILES),
        WindowQuery((last,), last - first, 10, (*by, "route"), "stages", PERCENTILES),
    ]


def _state(store: Store) -> tuple[object, ...]:
    state = store.read.state()
    return state.last_received, state.instances, state.dropped, state.oldest, state.shortened


def _comparable(item: Any) -> object:  # noqa: PLR0911 - a line for each type
    if isinstance(item, pd.DataFrame):
        return list(item.columns), [_comparable(list(row)) for row in item.itertuples()], _comparable(dict(item.attrs))
    if isinstance(item, Histogram):
        return item.scale, item.zero, dict(sorted(item.buckets.items()))
    if isinstance(item, np.ndarray):
        if item.dtype.kind in "iu":
            # Most of the values are zeros in large arrays of integers: a list of all of them costs more than the queries.
            places = item.nonzero()
            return item.shape, [place.tolist() for place in places], item[places].tolist()
        return _comparable(item.tolist())
    if isinstance(item, float):
        return "nan" if item != item else float(f"{item:.{SIGNIFICANT_DIGITS}g}")  # noqa: PLR0124 - only NaN differs from itself
    if isinstance(item, dict):
        return sorted(((repr(key), _comparable(value)) for key, value in item.items()), key=lambda each: each[0])
    if isinstance(item, frozenset):
        return sorted(item)
    if isinstance(item, (list, tuple)):
        return [_comparable(each) for each in item]
    if is_dataclass(item) and not isinstance(item, (type, datetime)):
        return [(field.name, _comparable(getattr(item, field.name))) for field in fields(item)]
    return item
