"""Hand-written OTLP bodies, and senders that repeat them until they are acknowledged."""

from __future__ import annotations

import gzip
import http.client
import json
import random
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from stagelens.core import names
from stagelens.core.request_histograms import RequestHistograms

if TYPE_CHECKING:
    from tests.chaos.senders import Work

_TIMEOUT_SECONDS = 1.5


@dataclass(frozen=True, slots=True)
class Body:
    path: str
    content: bytes
    headers: dict[str, str] = field(default_factory=dict[str, str])


class Sender:
    """Posts bodies to *address*, each on a connection of its own, until they are acknowledged."""

    def __init__(self, address: str, seed: float) -> None:
        self._host = urlsplit(address).netloc
        self._rng = random.Random(seed)

    def deliver(self, body: Body) -> None:
        while True:
            connection = http.client.HTTPConnection(self._host, timeout=_TIMEOUT_SECONDS)
            try:
                connection.request("POST", body.path, body.content, body.headers)
                status = connection.getresponse().status
            except (OSError, http.client.HTTPException):
                status = 0
            finally:
                connection.close()
            if status == 200:
                return
            assert status in (0, 429, 503), f"HTTP {status} for {body.path}"
            time.sleep(self._rng.uniform(0.0, 0.1))


def bodies(work: Work) -> Iterator[Body]:
    for number, burst in enumerate(work.bursts()):
        counts = RequestHistograms()
        for _ in range(burst):
            stages = {stage: spent * 1000 for stage, spent in work.request().items()}
            counts.add(stages, sum(stages.values()))
        metrics = _export(work.service, "resourceMetrics", "scopeMetrics", {"metrics": _metrics(counts)})
        # Without a name of its own a body is known by what it says.
        named = {names.BATCH_HEADER: f"{work.service}:{number}"} if work.rng.random() < 0.5 else {}
        yield _body("/v1/metrics", metrics, named)
        if work.rng.random() < 0.2:
            work.sent.traces[work.service] += 1
            trace = _export(work.service, "resourceSpans", "scopeSpans", {"spans": _retained(work.rng)})
            yield _body("/v1/traces", trace, {})


def _body(path: str, export: dict[str, Any], headers: dict[str, str]) -> Body:
    content = gzip.compress(json.dumps(export).encode(), 1)
    return Body(path, content, {"Content-Type": "application/json", "Content-Encoding": "gzip"} | headers)


def _export(service: str, outer: str, inner: str, items: dict[str, Any]) -> dict[str, Any]:
    scope = {"scope": {"name": names.SCOPE}, **items}
    return {outer: [{"resource": {"attributes": [_attribute(names.SERVICE_NAME, service)]}, inner: [scope]}]}


def _attribute(key: str, value: str | int) -> dict[str, Any]:
    return {"key": key, "value": {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}}


def _metrics(counts: RequestHistograms) -> list[dict[str, Any]]:
    now = time.time_ns()
    points: defaultdict[str, list[Any]] = defaultdict(list)
    for name, key, histogram in counts.histograms():
        times = {"startTimeUnixNano": str(now - 10**9), "timeUnixNano": str(now)}
        numbers = histogram.to_otlp()
        if name in names.TIME_METRICS:
            del numbers["sum"]
        attributes = [_attribute(names.METRICS[name], key), _attribute(names.STATUS, names.STATUS_OK)]
        points[name].append({"attributes": attributes, **times, **numbers})
    return [
        {"name": name, "exponentialHistogram": {"aggregationTemporality": 1, "dataPoints": found}}
        for name, found in points.items()
    ]


def _retained(rng: random.Random) -> list[dict[str, Any]]:
    now = time.time_ns()
    ids = {"traceId": rng.randbytes(16).hex(), "spanId": rng.randbytes(8).hex()}
    attributes = [
        _attribute(names.RETAINED_BECAUSE, "slow"),
        _attribute(names.STATUS, names.STATUS_OK),
        _attribute(f"{names.STAGE_SELF_PREFIX}forward", 10**9),
    ]
    times = {"startTimeUnixNano": str(now - 10**9), "endTimeUnixNano": str(now)}
    return [{**ids, "name": "POST /predict", "kind": 2, **times, "attributes": attributes}]
