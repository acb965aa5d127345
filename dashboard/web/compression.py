"""Response compression: gzip for JSON and HTML, cached for static files.

The static files are few (Dash, Plotly, our own) and their URLs carry a version: the compressed bytes take under two
megabytes, and browsers may cache them forever.
"""

from __future__ import annotations

import gzip
import hashlib
from threading import Lock

from flask import Flask, Response, request

_FAST, _SMALL = 5, 9
# Below this size compression saves less than its header costs.
_MIN_BYTES = 700
_TEXT = ("text/", "application/json", "application/javascript", "image/svg+xml")


def compress_responses(server: Flask, static_prefixes: tuple[str, ...]) -> None:
    """Compress the responses of *server*; those under *static_prefixes* once."""
    kept: dict[bytes, bytes] = {}
    lock = Lock()

    def packed(body: bytes) -> bytes:
        # Not by URL: anybody can invent URLs of one file, before signing in.
        key = hashlib.blake2b(body).digest()
        with lock:
            if key not in kept:
                kept[key] = gzip.compress(body, _SMALL, mtime=0)
            return kept[key]

    def after(response: Response) -> Response:
        static = request.path.startswith(static_prefixes) and response.status_code == 200  # noqa: PLR2004 - OK
        if static and "m" in request.args:
            response.headers["Cache-Control"] = "private, max-age=31536000, immutable"
        if not _wanted(response):
            return response
        response.direct_passthrough = False
        body = response.get_data()
        if len(body) >= _MIN_BYTES:
            response.set_data(packed(body) if static else gzip.compress(body, _FAST, mtime=0))
            response.headers["Content-Encoding"] = "gzip"
        response.headers.add("Vary", "Accept-Encoding")
        return response

    server.after_request(after)


def _wanted(response: Response) -> bool:
    return (
        200 <= response.status_code < 300  # noqa: PLR2004 - the answers that have a body worth packing
        and response.status_code != 204  # noqa: PLR2004 - no content
        and "Content-Encoding" not in response.headers
        and (response.mimetype or "").startswith(_TEXT)
        and "gzip" in request.accept_encodings
    )
