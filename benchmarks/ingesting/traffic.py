"""What is sent: exports of spans by an ordinary OpenTelemetry program, and of datapoints by our agent.

An export of spans is 64 requests, each a root and seven stages in a trace of its own, with about ten attributes a span and
one of them its own. A few dozen are made once; each is sent under new ids, again and again.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from stagelens.core import names
from stagelens.instrumentors.agent.aggregate import Delta, Dimensions
from stagelens.instrumentors.agent.sample import Sampler
from stagelens.instrumentors.config import SamplingLimits
from stagelens.instrumentors.export.otlp import Encoder, ExportInterval

NS = 1_000_000_000
SPANS_A_REQUEST = 8
REQUESTS_AN_EXPORT = 64
SPANS_AN_EXPORT = SPANS_A_REQUEST * REQUESTS_AN_EXPORT
PODS, ROUTES, AGENTS = 40, 34, 50
SERIES_AN_AGENT, REQUESTS_A_SERIES = 11, 60
REQUESTS_AN_AGENT = SERIES_AN_AGENT * REQUESTS_A_SERIES
# What stands for the number of the export: in ids of traces and one attribute of every span, and in ids of spans.
_MARK, _SHORT_MARK = b"@number@", b"@no@"
# Odd, so that every number has another product of 32 bits: ids lie as far apart as those that are drawn.
_SPREAD = 2_654_435_761

Attributes = dict[str, str | int | float]


@dataclass(frozen=True, slots=True)
class Export:
    path: str
    headers: dict[str, str]
    body: bytes


Exports = Callable[[int], Export]


@dataclass(frozen=True, slots=True)
class Load:
    exports: Callable[[], Exports]
    units: int


def spans() -> Exports:
    rng, now_ns = random.Random(1), time.time_ns()
    templates = [_spans_of(rng, pod, now_ns) for pod in range(PODS)]

    def export(number: int) -> Export:
        spread = number * _SPREAD % 2**32
        body = templates[number % PODS].replace(_MARK, f"{spread:08x}".encode())
        body = body.replace(_SHORT_MARK, spread.to_bytes(4, "big"))
        return Export("/v1/traces", {"Content-Type": "application/x-protobuf"}, body)

    return export


def _spans_of(rng: random.Random, pod: int, now_ns: int) -> bytes:
    request = ExportTraceServiceRequest()
    resource = request.resource_spans.add()
    resource.resource.attributes.extend(
        _attributes(
            {
                "service.name": f"shop-{pod % 5}",
                "service.version": "2.4.1",
                "service.instance.id": f"pod-{pod}",
                "deployment.environment.name": "production",
                "telemetry.sdk.name": "opentelemetry",
                "telemetry.sdk.language": "python",
                "telemetry.sdk.version": "1.40.0",
                "k8s.pod.name": f"shop-{pod % 5}-{pod}",
                "host.name": f"node-{pod % 7}",
            }
        )
    )
    scope = resource.scope_spans.add()
    scope.scope.name = "shop"
    for number in range(REQUESTS_AN_EXPORT):
        scope.spans.extend(_request(rng, number, now_ns - rng.randrange(5 * NS)))
    return request.SerializeToString()


def _request(rng: random.Random, number: int, ended_ns: int) -> list[Span]:
    """Return the spans of a request, the root last, as programs export them."""
    route = f"/v1/models/{rng.randrange(ROUTES)}/predict"
    own = [int(rng.lognormvariate(16 - place / 2, 0.5)) for place in range(SPANS_A_REQUEST)]
    at = started = ended_ns - sum(own)
    found: list[Span] = []
    for place, (name, kind, attributes) in enumerate(_stages(rng, route), start=1):
        found.append(_span(number, place, name, kind, at, at + own[place], attributes))
        at += own[place]
    root: Attributes = {
        "http.request.method": "POST",
        "http.route": route,
        "http.response.status_code": 500 if rng.random() < 0.01 else 200,
        "url.scheme": "http",
        "url.path": route,
        "server.address": "shop.example.com",
        "server.port": 8080,
        "client.address": f"10.0.{rng.randrange(256)}.{rng.randrange(256)}",
        "user_agent.original": "python-httpx/0.28.1",
        "network.protocol.version": "1.1",
    }
    return [*found, _span(number, 0, f"POST {route}", Span.SPAN_KIND_SERVER, started, ended_ns, root)]


def _stages(rng: random.Random, route: str) -> list[tuple[str, Span.SpanKind.ValueType, Attributes]]:
    model = route.split("/")[3]
    common: Attributes = {
        "thread.id": rng.randrange(64),
        "thread.name": f"worker-{rng.randrange(64)}",
        "code.function.name": "serve",
        "code.line.number": rng.randrange(400),
        "model.name": f"model-{model}",
    }
    database: Attributes = {
        "db.system.name": "postgresql",
        "db.namespace": "features",
        "db.operation.name": "SELECT",
        "db.query.summary": "SELECT features",
        "server.address": "db-1",
        "server.port": 5432,
    }
    call: Attributes = {
        "http.request.method": "GET",
        "http.response.status_code": 200,
        "url.full": "http://users:8000/users",
        "server.address": "users",
        "server.port": 8000,
    }
    generation: Attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": f"model-{model}",
        "gen_ai.usage.input_tokens": rng.randrange(1, 4000),
        "gen_ai.usage.output_tokens": rng.randrange(1, 400),
        "gen_ai.request.temperature": round(rng.random(), 6),
    }
    internal, client = Span.SPAN_KIND_INTERNAL, Span.SPAN_KIND_CLIENT
    return [
        ("queue", internal, {**common, "queue.depth": rng.randrange(100), "wait": rng.random()}),
        ("SELECT features", client, {**common, **database}),
        ("GET", client, {**common, **call}),
        ("tokenize", internal, {**common, "tokens": rng.randrange(4000), "share": rng.random()}),
        ("chat", client, {**common, **generation}),
        ("postprocess", internal, {**common, "items": rng.randrange(50), "score": rng.random()}),
        ("serialize", internal, {**common, "bytes": rng.randrange(50_000), "share": rng.random()}),
    ]


def _span(  # noqa: PLR0917 - a span has so many parts
    request: int,
    place: int,
    name: str,
    kind: Span.SpanKind.ValueType,
    start_ns: int,
    end_ns: int,
    attributes: Attributes,
) -> Span:
    return Span(
        trace_id=_MARK + request.to_bytes(8, "big"),
        span_id=_id(request, place),
        parent_span_id=_id(request, 0) if place else b"",
        name=name,
        kind=kind,
        start_time_unix_nano=start_ns,
        end_time_unix_nano=end_ns,
        attributes=_attributes({**attributes, "work.id": f"{_MARK.decode()}-{request}-{place}"}),
    )


def _id(request: int, place: int) -> bytes:
    # From 1: an id of zeros is none.
    return _SHORT_MARK + (1 + request * SPANS_A_REQUEST + place).to_bytes(4, "big")


def _attributes(values: Attributes) -> list[KeyValue]:
    def value(given: str | float) -> AnyValue:
        if isinstance(given, str):
            return AnyValue(string_value=given)
        return AnyValue(int_value=given) if isinstance(given, int) else AnyValue(double_value=given)

    return [KeyValue(key=key, value=value(given)) for key, given in values.items()]


def points() -> Exports:
    rng, now_ns = random.Random(1), time.time_ns()
    bodies = [agent_body(rng, f"shop-{agent % 5}", agent, now_ns) for agent in range(AGENTS)]

    def export(number: int) -> Export:
        headers = {
            "Content-Type": "application/x-protobuf",
            "Content-Encoding": "gzip",
            names.BATCH_HEADER: f"{number % AGENTS:032x}:{number}",
        }
        return Export("/v1/metrics", headers, bodies[number % AGENTS])

    return export


def agent_body(rng: random.Random, service: str, agent: int, now_ns: int) -> bytes:
    """Return what the agent of a process sends for the ten seconds before *now_ns*, as gzip."""
    resource = {"service.name": service, "service.version": "2", "service.instance.id": f"{agent:032x}"}
    return Encoder(resource, lambda: None).metrics(ExportInterval(now_ns - 10 * NS, now_ns), _deltas(rng), {})


def points_an_export() -> int:
    """Return how many datapoints an export of `points` has; one more or less, as stages dominate."""
    return sum(1 for delta in _deltas(random.Random(1)).values() for _ in delta.counts.histograms())


def _deltas(rng: random.Random) -> dict[Dimensions, Delta]:
    stages = ("forward", "queue", "preprocess", "tokenize", "postprocess", "serialize", "network", "overhead")
    found: dict[Dimensions, Delta] = {}
    for route in range(SERIES_AN_AGENT):
        delta = Delta(Sampler(SamplingLimits()))
        for _ in range(REQUESTS_A_SERIES):
            spent = {stage: int(rng.lognormvariate(17 - place / 2, 0.4)) for place, stage in enumerate(stages)}
            if rng.random() < 0.05:
                spent["queue"] *= 30
            delta.counts.add(spent, sum(spent.values()))
        found[Dimensions("model", "1", f"/predict/{route}", "cuda:0", names.STATUS_OK)] = delta
    return found
