"""The service that is measured: JSON in, six steps, JSON out. Where BENCHMARK_STAGES names who records, by hand, it does.

Nothing is in here for us: `stagelens run` finds the libraries, and is told of the service's own steps.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

from .models import MODELS

api = FastAPI()
model = MODELS[os.environ.get("BENCHMARK_MODEL", "none")]()


class Item(BaseModel):
    name: str
    values: list[float]


def check(item: Item) -> list[float]:
    return item.values


def preprocess(values: list[float]) -> list[float]:
    most = max(values)
    return [value / most for value in values]


def tokenize(values: list[float]) -> list[int]:
    return [int(value * 255) for value in values]


def forward(_: list[int]) -> object:
    return model()


def postprocess(_: object, tokens: list[int]) -> float:
    return sum(tokens) / len(tokens)


def answer(item: Item, score: float) -> dict[str, Any]:
    return {"name": item.name, "score": score}


@api.post("/predict")
async def predict(item: Item) -> dict[str, Any]:
    values = preprocess(check(item))
    tokens = tokenize(values)
    return answer(item, postprocess(forward(tokens), tokens))


STEPS = (check, preprocess, tokenize, forward, postprocess, answer)


def _record(wrap: Callable[[str, Callable[..., Any]], Callable[..., Any]]) -> None:
    for step in STEPS:
        globals()[step.__name__] = wrap(step.__name__, step)


def _by_opentelemetry() -> None:
    from opentelemetry import metrics, trace  # noqa: PLC0415
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter  # noqa: PLC0415
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
    from opentelemetry.sdk.metrics import MeterProvider  # noqa: PLC0415
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    metrics.set_meter_provider(MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())]))
    span = trace.get_tracer("benchmark").start_as_current_span
    _record(lambda name, step: span(name)(step))


def _by_ddtrace() -> None:
    from ddtrace.trace import tracer  # noqa: PLC0415

    _record(lambda name, step: tracer.wrap(name)(step))


def _by_prometheus() -> None:
    from prometheus_client import Histogram  # noqa: PLC0415

    histogram = Histogram("stage", "By stage.", ["stage"])
    _record(lambda name, step: histogram.labels(name).time()(step))


_RECORDERS = {
    "": lambda: None,
    "opentelemetry": _by_opentelemetry,
    "ddtrace": _by_ddtrace,
    "prometheus": _by_prometheus,
}
_RECORDERS[os.environ.get("BENCHMARK_STAGES", "")]()
