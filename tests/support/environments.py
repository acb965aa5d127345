"""A store with requests of several environments, whose services share names."""

from __future__ import annotations

import zlib
from dataclasses import replace
from datetime import UTC, datetime
from random import Random
from typing import Any

from stagelens.store import Batch, Event, Series
from stagelens.store.events import StoredLoad
from tests.store.engines.test_same_results import beside, trace
from tests.support.raw_requests import NOON, NS, Request, Site


def fill(one: Site, environments: tuple[str, ...]) -> None:
    """Write the same data for each of *environments*, whatever the others are, and wait until all tiers hold some."""
    random = {environment: Random(environment) for environment in environments}
    for number in range(6):
        for environment in environments:
            requests = [_request(random[environment], environment, number) for _ in range(30)]
            one.write(requests)
            more = [point for request in requests for point in beside(request, random[environment])]
            kept = first_trace(environment) + number * 10
            traces = [
                replace(trace(request, kept + place), spans=_spans(environment, request))
                for place, request in enumerate(requests[:3])
            ]
            one.store.write([Batch(f"{environment}-{number}", more, traces, loads=[_load(environment, number)])])
    for environment in environments:
        one.store.add_event(_event(environment))
    one.clock.now += 7300
    one.store.maintain()


def _request(random: Random, environment: str, number: int) -> Request:
    service = random.choice(["shop", "bank", f"only-{environment}"])
    series = Series(service, f"{environment}-{random.choice('12')}", environment, route=random.choice(["/a", "/b"]))
    stages = {"forward": random.randint(1, 9**9), f"own-{environment}": random.randint(1, 9**8)}
    return Request(stages, NOON - 9000 + number * 600 + random.randint(0, 500), series)


def _spans(environment: str, request: Request) -> list[dict[str, Any]]:
    spent = request.stages_ns["forward"]
    return [{"name": f"call-{environment}", "stage": "forward", "start_ns": 0, "duration_ns": spent, "attributes": {}}]


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
