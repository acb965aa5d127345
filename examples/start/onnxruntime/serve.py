"""What kind of file is this? magika, whose ONNX model comes with its wheel, behind FastAPI."""

from __future__ import annotations

from fastapi import FastAPI
from magika import Magika

app = FastAPI()
model = Magika()
model.identify_bytes(b"the first run of a session is slow")


@app.get("/texts/{number}")
def identify(number: int) -> dict[str, str]:
    return {"label": model.identify_bytes(b"import this\n" * number).output.label}
