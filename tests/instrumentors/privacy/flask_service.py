"""A Flask service."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import planted
from flask import Flask, Response, request
from planted import secret

planted.log_ours()
app = Flask(__name__)


@app.post("/items/<name>")
def item(name: str) -> Any:
    return {"name": name, "json": request.get_json(), "headers": str(request.headers), "query": request.args}


@app.post("/forms")
def form() -> Any:
    return {"fields": request.form, "names": [file.filename for file in request.files.values()]}


@app.get("/streams")
def stream() -> Response:
    def parts() -> Iterator[str]:
        yield secret("chunk")
        yield secret("chunk")

    return Response(parts(), f"503 {secret('reason')}", {"X-Answer": secret("answerheader")})


@app.get("/fails")
def fails() -> str:
    raise RuntimeError(secret("exception"))


@app.get("/instrumented")
def instrumented() -> Any:
    return planted.instrumented()
