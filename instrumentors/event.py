"""Events, such as a deployment, that `stagelens event` sends to the collector."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping

from ..core.errors import StagelensError
from ..core.proxies import ProxyError, proxy_of
from .config import DEFAULT_ENDPOINT, AgentConfig
from .export.exporter import OK_STATUSES
from .export.http_post import explain, post


def send_event(event: Mapping[str, str | None], env: Mapping[str, str]) -> None:
    """Send *event* to the collector at OTEL_EXPORTER_OTLP_ENDPOINT, without the fields that are None."""
    # Metrics may have a separate endpoint.
    config = AgentConfig.from_env({key: value for key, value in env.items() if "_METRICS_" not in key})
    base = config.metrics_url.removesuffix("/v1/metrics")
    given = {key: value for key, value in event.items() if value is not None}
    headers = {**config.headers, "Content-Type": "application/json"}
    try:
        url, body = f"{base}/v1/events", json.dumps(given).encode()
        response = post(url, body, headers, config.timeout_seconds, config.trust.context, proxy=proxy_of(url))
    except ProxyError as error:
        msg = f"{base} cannot be reached: {error}.\n    {error.fix}"
        raise StagelensError(msg) from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        msg = (
            f"there is no collector at {base} ({explain(error, base)[0]}).\n"
            f"    Start one with `stagelens up`, or set OTEL_EXPORTER_OTLP_ENDPOINT (default {DEFAULT_ENDPOINT})"
        )
        raise StagelensError(msg) from error
    if response.status not in OK_STATUSES:
        msg = f"the collector at {base} rejected the event ({response.status}): {_reason(response.body)}"
        raise StagelensError(msg)


def _reason(body: bytes) -> str:
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return "the response has no reason; check that it is a Stagelens collector"
