"""A service that OpenTelemetry traces already: FastAPI, and two spans of its own in each request. Stagelens is not in it."""

from __future__ import annotations

import random
import time

from fastapi import FastAPI
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
trace.set_tracer_provider(provider)
tracer = trace.get_tracer("ranker")

app = FastAPI()
FastAPIInstrumentor.instrument_app(app)


@app.get("/rank/{number}")
def rank(number: int) -> dict[str, int]:
    """Rank *number*, by the roll of a die."""
    with tracer.start_as_current_span("fetch features"):
        time.sleep(0.002)
    with tracer.start_as_current_span("score"):
        time.sleep(random.lognormvariate(-5, 0.5))
    return {"rank": number % 10}
