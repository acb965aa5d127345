"""Inputs that are right, of every kind the collector reads, for the fuzzers to break."""

from __future__ import annotations

import time
from typing import Any

from stagelens.core import names
from tests.collector.traces.otlp import attributes

NOW = time.time_ns()
SECOND = 10**9


RESOURCE = attributes(
    {names.SERVICE_NAME: "shop", names.SERVICE_VERSION: "1", names.ENVIRONMENT: "prod", names.SERVICE_INSTANCE: "pod-1"}
)


def point(key: str, value: str) -> dict[str, Any]:
    return {
        "attributes": attributes({key: value, names.STATUS: "ok", names.ROUTE: "/predict", "list": [0.5, True]}),
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


def span(number: int, name: str, kind: int, values: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "traceId": "ab" * 16,
        "spanId": f"{number:016x}",
        "parentSpanId": f"{number - 1:016x}" if number > 1 else "",
        "name": name,
        "kind": kind,
        "startTimeUnixNano": str(NOW - SECOND + number * 10**7),
        "endTimeUnixNano": str(NOW - number * 10**7),
        "attributes": attributes(values),
        **more,
    }


# By scope. Semantic conventions of HTTP, gRPC, databases and GenAI, and those of engines.
SPANS: dict[str, list[dict[str, Any]]] = {
    names.SCOPE: [
        span(1, "POST /predict", 2, {names.RETAINED_BECAUSE: "slow", names.STAGE_SELF_PREFIX + "forward": 980_000_000}),
        span(2, "forward", 1, {names.STAGE: "forward", names.TIMING: "gpu"}),
    ],
    "opentelemetry.instrumentation.fastapi": [
        span(
            1,
            "POST /predict",
            2,
            {"http.request.method": "POST", "http.route": "/predict", "http.response.status_code": 200},
        ),
        span(2, "/predict http receive", 1, {"asgi.event.type": "http.request"}),
        span(
            3,
            "SELECT shop",
            3,
            {"db.system": "postgresql", "db.statement": "SELECT 1"},
            status={"code": 2, "message": "gone"},
        ),
        span(4, "Features/Get", 3, {"rpc.system": "grpc", "rpc.service": "Features", "rpc.method": "Get"}),
    ],
    "opentelemetry.instrumentation.openai_v2": [
        span(
            1,
            "chat gpt",
            3,
            {
                "gen_ai.operation.name": "chat",
                "gen_ai.request.model": "gpt",
                "gen_ai.usage.input_tokens": 12,
                "gen_ai.usage.output_tokens": 5,
                "gen_ai.server.time_to_first_token": 0.02,
            },
        ),
        span(2, "LLM", 1, {"openinference.span.kind": "LLM", "llm.model_name": "gpt", "llm.token_count.prompt": 3}),
        span(3, "retrieve", 1, {"openinference.span.kind": "RETRIEVER", "input.value": "never to be kept"}),
    ],
    "vllm.llm_engine": [
        span(
            1,
            "llm_request",
            2,
            {
                "gen_ai.response.model": "llama",
                "gen_ai.latency.time_in_queue": 0.01,
                "gen_ai.latency.time_to_first_token": 0.1,
                "gen_ai.latency.e2e": 0.9,
                "gen_ai.latency.time_in_model_prefill": 0.09,
                "gen_ai.latency.time_in_model_decode": 0.7,
                "gen_ai.usage.completion_tokens": 20,
            },
        )
    ],
    "triton-server": [
        span(1, "InferRequest", 2, {"triton.model_name": "resnet", "triton.model_version": 1}),
        span(
            2,
            "compute",
            1,
            {"triton.model_name": "resnet"},
            events=[
                {"timeUnixNano": str(NOW - SECOND // 2 + number * 10**6), "name": name}
                for number, name in enumerate(
                    ("REQUEST_START", "QUEUE_START", "COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_END", "REQUEST_END")
                )
            ],
        ),
    ],
}

EVENT = {
    "text": "v2 is out",
    "service": "shop",
    "kind": "deploy",
    "key": "v2",
    "at": "2026-11-22T12:00:00Z",
    "link": "/",
}

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

STATISTICS = {
    "model_stats": [
        {
            "name": "resnet",
            "version": "1",
            "batch_stats": [
                {
                    "batch_size": 4,
                    "compute_input": {"count": 7, "ns": 7_000},
                    "compute_infer": {"count": 7, "ns": 7_000_000},
                    "compute_output": {"count": 7, "ns": 700},
                }
            ],
        }
    ]
}
