"""Inputs that are right, of every kind the collector reads, for the fuzzers to break."""

from __future__ import annotations

import time
from typing import Any

import yaml

from stagelens.core import names
from tests.collector.traces import otlp

NOW = time.time_ns()
SECOND = 10**9


RESOURCE = otlp.attributes(
    {names.SERVICE_NAME: "shop", names.SERVICE_VERSION: "1", names.ENVIRONMENT: "prod", names.SERVICE_INSTANCE: "pod-1"}
)


def point(key: str, value: str) -> dict[str, Any]:
    return {
        "attributes": otlp.attributes({key: value, names.STATUS: "ok", names.ROUTE: "/predict", "list": [0.5, True]}),
        "startTimeUnixNano": str(NOW - 10 * SECOND),
        "timeUnixNano": str(NOW),
        "count": "3",
        "sum": 0.3,
        "scale": 5,
        "zeroCount": "0",
        "positive": {"offset": -107, "bucketCounts": ["1", "2"]},
    }


_KEYS = {names.ATTRIBUTE: "tenant=acme"}
METRICS: list[dict[str, Any]] = [
    {
        "name": name,
        "exponentialHistogram": {"aggregationTemporality": 1, "dataPoints": [point(key, _KEYS.get(key, "forward"))]},
    }
    for name, key in names.METRICS.items()
] + [
    {
        "name": names.REQUESTS_DROPPED,
        "sum": {
            "aggregationTemporality": 1,
            "isMonotonic": True,
            "dataPoints": [{"timeUnixNano": str(NOW), "asInt": "1"}],
        },
    },
    {"name": "their.own", "gauge": {"dataPoints": [{"timeUnixNano": str(NOW), "asDouble": 1.5}]}},
]


def _span(number: int, name: str, kind: int, attributes: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "traceId": "ab" * 16,
        "spanId": f"{number:016x}",
        "parentSpanId": f"{number - 1:016x}" if number > 1 else "",
        "name": name,
        "kind": kind,
        "startTimeUnixNano": str(NOW - SECOND + number * 10**7),
        "endTimeUnixNano": str(NOW - number * 10**7),
        "attributes": otlp.attributes(attributes),
        **more,
    }


# Semantic conventions of HTTP, gRPC, databases and GenAI, and those of engines.
_BY_SCOPE: dict[str, list[dict[str, Any]]] = yaml.safe_load("""
opentelemetry.instrumentation.fastapi:
- name: POST /predict
  kind: 2
  attributes: {http.request.method: POST, http.route: /predict, http.response.status_code: 200}
- {name: /predict http receive, kind: 1, attributes: {asgi.event.type: http.request}}
- name: SELECT shop
  kind: 3
  attributes: {db.system: postgresql, db.statement: SELECT 1}
  status: {code: 2, message: gone}
- {name: Features/Get, kind: 3, attributes: {rpc.system: grpc, rpc.service: Features, rpc.method: Get}}
opentelemetry.instrumentation.openai_v2:
- name: chat gpt
  kind: 3
  attributes:
    gen_ai.operation.name: chat
    gen_ai.request.model: gpt
    gen_ai.usage.input_tokens: 12
    gen_ai.usage.output_tokens: 5
    gen_ai.server.time_to_first_token: 0.02
- {name: LLM, kind: 1, attributes: {openinference.span.kind: LLM, llm.model_name: gpt, llm.token_count.prompt: 3}}
- {name: retrieve, kind: 1, attributes: {openinference.span.kind: RETRIEVER, input.value: never to be kept}}
vllm.llm_engine:
- name: llm_request
  kind: 2
  attributes:
    gen_ai.response.model: llama
    gen_ai.latency.time_in_queue: 0.01
    gen_ai.latency.time_to_first_token: 0.1
    gen_ai.latency.e2e: 0.9
    gen_ai.latency.time_in_model_prefill: 0.09
    gen_ai.latency.time_in_model_decode: 0.7
    gen_ai.usage.completion_tokens: 20
triton-server:
- {name: InferRequest, kind: 2, attributes: {triton.model_name: resnet, triton.model_version: 1}}
- {name: compute, kind: 1, attributes: {triton.model_name: resnet}}
""")
SPANS: dict[str, list[dict[str, Any]]] = {
    names.SCOPE: [
        _span(
            1, "POST /predict", 2, {names.RETAINED_BECAUSE: "slow", f"{names.STAGE_SELF_PREFIX}forward": 980_000_000}
        ),
        _span(2, "forward", 1, {names.STAGE: "forward", names.TIMING: "gpu"}),
    ],
    **{scope: [_span(number, **row) for number, row in enumerate(rows, 1)] for scope, rows in _BY_SCOPE.items()},
}
_TRITON_EVENTS = ("REQUEST_START", "QUEUE_START", "COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_END", "REQUEST_END")
SPANS["triton-server"][1]["events"] = [
    {"timeUnixNano": str(NOW - SECOND // 2 + number * 10**6), "name": name}
    for number, name in enumerate(_TRITON_EVENTS)
]

EVENT, STATISTICS = yaml.safe_load_all("""
{text: v2 is out, service: shop, kind: deploy, key: v2, at: "2026-11-22T12:00:00Z", link: /}
---
model_stats:
- name: resnet
  version: "1"
  batch_stats:
  - batch_size: 4
    compute_input: {count: 7, ns: 7000}
    compute_infer: {count: 7, ns: 7000000}
    compute_output: {count: 7, ns: 700}
""")

EXPOSITION = """\
# HELP vllm:e2e_request_latency_seconds Time.
# TYPE vllm:e2e_request_latency_seconds histogram
vllm:e2e_request_latency_seconds_bucket{le="0.3",model_name="llama"} 1.0
vllm:e2e_request_latency_seconds_bucket{le="1.0",model_name="llama"} 3.0
vllm:e2e_request_latency_seconds_bucket{le="+Inf",model_name="llama"} 4.0
vllm:e2e_request_latency_seconds_count{model_name="llama"} 4.0
vllm:e2e_request_latency_seconds_sum{model_name="llama"} 5.5
# TYPE nv_inference_request_success counter
nv_inference_request_success{model="resnet",version="1"} 7
# TYPE nv_inference_queue_duration_us counter
nv_inference_queue_duration_us{model="resnet",version="1"} 120
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1.7e+09
"""
