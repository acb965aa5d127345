"""What kind of file is this? magika behind Flask; gunicorn runs it in two processes of two threads."""

from __future__ import annotations

from flask import Flask, jsonify
from flask.wrappers import Response
from magika import Magika

app = Flask(__name__)
model = Magika()
model.identify_bytes(b"the first run of a session is slow")


def prepare(number: int) -> bytes:
    return "\n".join(f"print({line})" for line in range(number)).encode()


@app.get("/texts/<int:number>")
def identify(number: int) -> Response:
    return jsonify(label=model.identify_bytes(prepare(number)).output.label)
