"""Whether the dashboard can answer, for whatever watches over it. It says nothing about the data.

GET /livez              200 as long as it answers at all: only a restart helps one that does not
GET /readyz, /healthz   200 while the store can be read, 503 with the reason while it cannot
"""

from __future__ import annotations

import logging

from flask import Flask, Response

from ..core.errors import StagelensError
from .source import Source

LIVEZ = "/livez"
READYZ = ("/readyz", "/healthz")
PATHS = (LIVEZ, *READYZ)

_log = logging.getLogger(__name__)


def report(server: Flask, source: Source) -> None:
    """Answer `PATHS` on *server*."""

    def readyz() -> Response:
        try:
            source.revision()
        except StagelensError as error:
            return _said(str(error), 503)
        except Exception:  # noqa: BLE001 - whatever a store meets, the asker gets an answer
            _log.exception("the store did not answer %s", READYZ[0])
            return _said("the store does not answer; the log of the dashboard says more", 503)
        return _said("ok", 200)

    server.add_url_rule(LIVEZ, "livez", lambda: _said("ok", 200))
    for path in READYZ:
        server.add_url_rule(path, path.strip("/"), readyz)


def _said(text: str, status: int) -> Response:
    return Response(f"{text}\n", status, mimetype="text/plain", headers={"Cache-Control": "no-store"})
