"""The chart of an incident, for receivers of alerts that fetch it and cannot sign in: `GET /charts/<incident>/<signature>.png`.

Whoever has the address may see this one picture, and nothing else: only we can make one (`alerts.delivery.chart_address`).
"""

from __future__ import annotations

from flask import Flask, Response

from ..alerts.delivery.chart import CHART_PATH
from .incident_actions import Care

ENDPOINT = "chart of an incident"
# An incident that goes on is drawn anew. [seconds]
_KEPT_SECONDS = 60


def serve(server: Flask, care: Care) -> None:
    """Answer on *server*: 404 where the signature is not ours, or there is nothing to draw."""

    def chart(incident: str, signature: str) -> Response:
        png = care.chart(incident, signature)
        if png is None:
            return Response("not found", 404, mimetype="text/plain", headers={"Cache-Control": "no-store"})
        kept = {"Cache-Control": f"private, max-age={_KEPT_SECONDS}", "Cross-Origin-Resource-Policy": "cross-origin"}
        return Response(png, mimetype="image/png", headers=kept)

    server.add_url_rule(f"{CHART_PATH}/<incident>/<signature>.png", ENDPOINT, chart)
