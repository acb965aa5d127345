"""What the collector says besides taking things in: where things go, and that there is nothing at an address."""

from __future__ import annotations

from http import HTTPStatus

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from ..ingest.pipeline import Destination
from ..otlp.responses import Reply, failure_reply

PATHS: dict[str, Destination] = {
    "/v1/metrics": "metrics",
    "/v1/traces": "traces",
    "/v1/logs": "logs",
    "/v1/events": "events",
}
PROBES = ("/livez", "/readyz", "/healthz")
WELCOME = """\
This is a Stagelens collector. It takes OpenTelemetry metrics and traces of inference services over OTLP/HTTP
here and OTLP/gRPC at a port of its own:

  POST /v1/metrics, /v1/traces   protobuf or JSON, gzip, zstd or neither
  POST /v1/events                what happened: {{"text": "v1.2 is out", "service": "shop", "kind": "deploy", "key": "v1.2"}}
  POST /v1/logs                  is answered, and keeps nothing
  GET  /readyz                   whether it can commit what it is sent, and why not; /healthz is the same
  GET  /livez                    whether its threads live, or it should be restarted
  GET  /metrics                  its own metrics, for Prometheus

There is nothing to see here. The dashboard is at {dashboard_url}
"""


def media_type_of(request: Request) -> str:
    """Return the media type of the body of *request*, without its parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def response_of(reply: Reply) -> Response:
    """Return *reply* as what the server sends."""
    return Response(reply.body, reply.status, reply.headers, media_type=reply.media_type)


async def http_error(request: Request, error: Exception) -> Response:
    """Answer what no route takes, with a hint at what would have been right."""
    status = HTTPStatus(error.status_code) if isinstance(error, HTTPException) else HTTPStatus.NOT_FOUND
    path = request.url.path[:100]
    headers: dict[str, str] = {}
    if status == HTTPStatus.METHOD_NOT_ALLOWED:
        wanted = "POST" if path in PATHS else "GET"
        message = f"{path} takes {wanted}, not {request.method}"
        headers = {"Allow": wanted}
    else:
        message = (
            f"there is nothing at {path}; OTLP goes to /v1/metrics and /v1/traces (give exporters the address without a path), "
            "events to /v1/events"
        )
    return response_of(failure_reply(media_type_of(request), status, message, headers))
