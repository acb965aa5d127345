"""FastAPI service with all models and clients; neither it nor the agent may expose secrets."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import planted
from drive_clients import Clients
from drive_models import Models
from fastapi import FastAPI, Form, Request, UploadFile
from fastapi.responses import StreamingResponse
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from planted import secret
from pydantic import BaseModel

from stagelens.instrumentors.export import user_spans

planted.log_ours()
# The exporter below is synchronous, and the test has to see the spans of every model.
user_spans.MAX_SECONDS = user_spans.MAX_SPANS = 1_000_000


class Exporter(SpanExporter):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Write the spans of Stagelens; those of the user may contain anything."""
        with Path(os.environ["PRIVACY_SPANS"]).open("a", encoding="utf-8") as file:
            for span in spans:
                if span.instrumentation_scope and span.instrumentation_scope.name.startswith("stagelens"):
                    file.write(f"{span.to_json(indent=None)}\n")
        return SpanExportResult.SUCCESS


class Item(BaseModel):
    text: str


provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(Exporter()))
trace.set_tracer_provider(provider)
tracer = trace.get_tracer(secret("scope"))

app = FastAPI(title=secret("title"))
models = Models(Path(os.environ["PRIVACY_FOLDER"]))
clients = Clients(*os.environ["PRIVACY_UPSTREAMS"].split())


@app.post("/items/{name}")
async def item(name: str, item: Item, request: Request) -> Item:
    response = Item(text=f"{name} {item.text} {await request.json()} {request.headers} {request.query_params}")
    setattr(request.state, secret("state"), secret("state"))
    return response


@app.post("/forms")
async def form(file: UploadFile, field: Annotated[str, Form()]) -> Any:
    return {"name": file.filename, "text": str(await file.read()), field: field}


@app.get("/streams")
async def stream() -> StreamingResponse:
    async def parts() -> AsyncIterator[str]:
        for number in range(3):
            yield f"{secret('chunk')}{number}"

    return StreamingResponse(parts(), headers={"X-Answer": secret("answerheader")})


@app.get("/fails")
def fails() -> None:
    raise RuntimeError(secret("exception"))


@app.get("/spans")
def spans() -> str:
    token = context.attach(baggage.set_baggage(secret("baggagekey"), secret("baggagevalue")))
    with tracer.start_as_current_span(secret("span"), attributes={secret("attribute"): secret("attributevalue")}):
        context.detach(token)
        return secret("answer")


@app.get("/instrumented")
def instrumented() -> list[str]:
    return planted.instrumented()


def _endpoint(drive: Callable[[], object]) -> Callable[[], str]:
    def endpoint() -> str:
        drive()
        return secret("answer")

    return endpoint


for name, drive in {**models.ways(), **clients.ways()}.items():
    app.get(f"/{name}")(_endpoint(drive))
