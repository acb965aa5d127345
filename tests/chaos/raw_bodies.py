"""OTLP bodies, and senders that repeat them until they are acknowledged."""

from __future__ import annotations

import http.client
import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from stagelens.core import names
from stagelens.core.request_histograms import RequestHistograms
from tests.collector.traces.otlp import attributes
from tests.support.otlp_bodies import AGENT_HEADERS, agent_body

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
        # Without a name of its own a body is known by what it says.
        named = {names.BATCH_HEADER: f"{work.service}:{number}"} if work.rng.random() < 0.5 else {}
        yield Body("/v1/metrics", agent_body(work.service, counts), AGENT_HEADERS | named)
        if work.rng.random() < 0.2:
            work.sent.traces[work.service] += 1
            yield _trace(work.service, work.rng)


def _trace(service: str, rng: random.Random) -> Body:
    now = time.time_ns()
    values = attributes(
        {names.RETAINED_BECAUSE: "slow", names.STATUS: names.STATUS_OK, f"{names.STAGE_SELF_PREFIX}forward": 10**9}
    )
    span = {
        "traceId": rng.randbytes(16).hex(),
        "spanId": rng.randbytes(8).hex(),
        "name": "POST /predict",
        "kind": 2,
        "startTimeUnixNano": str(now - 10**9),
        "endTimeUnixNano": str(now),
        "attributes": values,
    }
    scope = {"scope": {"name": names.SCOPE}, "spans": [span]}
    resource = {"attributes": attributes({names.SERVICE_NAME: service})}
    export = {"resourceSpans": [{"resource": resource, "scopeSpans": [scope]}]}
    return Body("/v1/traces", json.dumps(export).encode(), {"Content-Type": "application/json"})
