"""A store with requests of several environments, whose services share names."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from random import Random
from typing import Any

from stagelens.core import names
from stagelens.core.attributes import ATTRIBUTE_SCALE
from stagelens.core.histogram import SCALE, Histogram
from stagelens.store import Batch, Event, Point, Series, schema
from stagelens.store.events import StoredLoad
from tests.store.engines.test_same_results import beside
from tests.support.raw_requests import NOON, NS, Request, Site, retained

# Keys of points that contain a name, such as that of the environment.
KEYS = (
    (names.REQUEST_BY_ATTRIBUTE, "tenant=tenant-{}"),
    (names.REQUEST_BY_ATTRIBUTE, "key-{}=value"),
    (names.REQUEST_BY_ATTRIBUTE, "caller=caller-{}"),
    (names.REQUEST_BY_ATTRIBUTE, "replica=replica-{}:7"),
    (names.REQUEST_BY_ATTRIBUTE, "replica=@engine-{}:8000"),
    (names.REPLICA_STAGE_TIME, "forward;replica-{}:7"),
    (names.OPEN_TIME, "open replica-{}:7"),
    (names.PROFILE_TIME, "forward;serve:of_{}@{}.py:30"),
    (names.FAILED_CALL, "host-{}:timeout"),
)
# Part of another environment in a trace, as a reader who may not see that environment gets it.
HIDDEN = {"name": "1 request of another environment", "attributes": {names.SERVICE_NAME: "another environment"}}


def fill(one: Site, environments: tuple[str, ...], known: tuple[str, ...] = ()) -> None:
    """Write the same data for each of *environments*, whatever the others are, and wait until all tiers hold some.

    The traces of each also have parts of all environments *known*, by default *environments*; those of others are `HIDDEN`.
    """
    parts = [_part(name) if name in environments else HIDDEN for name in known or environments]
    random = {environment: Random(environment) for environment in environments}
    for number in range(6):
        for environment in environments:
            requests = [_request(random[environment], environment, number) for _ in range(30)]
            one.write(requests)
            more = [point for request in requests for point in beside(request, random[environment])]
            more += [point for request in requests[:5] for point in _named_points(request, environment)]
            kept = first_trace(environment) + number * 10
            traces = [
                replace(
                    retained(request, kept + place),
                    spans=_spans(environment, request, parts),
                    attributes=_facts(environment) | {names.PROFILE: f"900 forward;serve:of_{environment}@serve.py:30"},
                )
                for place, request in enumerate(requests[:3])
            ]
            one.store.write([Batch(f"{environment}-{number}", more, traces, loads=[_load(environment, number)])])
    for environment in environments:
        one.store.add_event(_event(environment))
    one.clock.now += 7300
    one.store.maintain()


def _request(random: Random, environment: str, number: int) -> Request:
    service = random.choice(["shop", "bank", f"only-{environment}"])
    series = Series(
        service,
        f"{environment}-{random.choice('12')}",
        environment,
        model=f"model-{environment}",
        route=random.choice(["/a", "/b", f"/{environment}"]),
        device=f"gpu-{environment}",
        status=random.choice(["ok", "ok", "error"]),
    )
    stages = {"forward": random.randint(1, 9**9), f"own-{environment}": random.randint(1, 9**8)}
    return Request(stages, NOON - 9000 + number * 600 + random.randint(0, 500), series)


def _named_points(request: Request, name: str) -> Iterator[Point]:
    for metric, key in KEYS:
        histogram = Histogram(ATTRIBUTE_SCALE if metric in schema.WITHOUT_TOTALS else SCALE)
        histogram.record(request.seconds)
        if metric in names.TIME_METRICS:
            histogram.sum = 0.0
        yield Point(request.series, metric, key.format(name, name), request.at - request.at % 10, histogram)


def _facts(name: str) -> dict[str, Any]:
    return {
        names.ERROR_TYPE: f"Error-{name}",
        names.SERVER: f"host-{name}",
        f"{names.ATTRIBUTE}.tenant": f"tenant-{name}",
        f"{names.ATTRIBUTE}.key-{name}": "value",
    }


def _part(name: str) -> dict[str, Any]:
    where = {names.SERVICE_NAME: f"served-{name}", names.ENVIRONMENT: name}
    return {"name": f"POST /of-{name}", "attributes": _facts(name) | {names.STATUS: names.STATUS_ERROR} | where}


def _spans(environment: str, request: Request, parts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    spent = request.stages_ns["forward"]
    spans = [{"name": f"call-{environment}", "stage": "forward", "start_ns": 0, "duration_ns": spent, "attributes": {}}]
    length = spent // len(parts)
    for number, part in enumerate(parts):
        start = number * length
        call = {"name": "POST", "stage": "network", "id": f"{number + 1:016x}", "attributes": {names.SERVER: "gateway"}}
        spans.append(call | {"start_ns": start, "duration_ns": length})
        spans.append(part | {"stage": "dependency", "start_ns": start + length // 4, "duration_ns": length // 2})
    return spans


def _load(environment: str, number: int) -> StoredLoad:
    at = (NOON - 600 * number) * NS
    name = f"{environment}-{number}"
    return StoredLoad("shop", "1", environment, name, f"host-{name}:1", "weights", "m", "", at, at + NS, NS)


def _event(environment: str) -> Event:
    at = datetime.fromtimestamp(NOON - 600, UTC)
    return Event(at, "shop", "deploy", environment, f"deployed to {environment or 'all'}", environment=environment)


def first_trace(environment: str) -> int:
    """Return the number of the first trace of *environment*, which has 60 numbers from there on."""
    return zlib.crc32(environment.encode()) // 100 * 100
