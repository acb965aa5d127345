"""`stagelens event`: tell the collector that something happened, as the last step of a deploy."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from ..core.errors import StagelensError
from .config import DEFAULT_ENDPOINT, AgentConfig

# Of an answer; the reason of a refusal is shorter.
_MAX_ANSWER_BYTES = 10_000


def main(event: Mapping[str, str | None], env: Mapping[str, str]) -> int:
    """Send *event* to the collector that OTEL_EXPORTER_OTLP_ENDPOINT names, as agents do.

    Args:
        event: `text`, `service`, `kind`, `key`, `at` and `link`; what is None is left out.
        env: The environment.

    Returns:
        0.

    Raises:
        StagelensError: The collector refused it, or cannot be reached.
    """
    # The address of metrics may be another one than that of everything else.
    config = AgentConfig.from_env({key: value for key, value in env.items() if "_METRICS_" not in key})
    base = config.metrics_url.removesuffix("/v1/metrics")
    given = {key: value for key, value in event.items() if value is not None}
    request = urllib.request.Request(  # noqa: S310 - the setting takes http and https only
        f"{base}/v1/events",
        json.dumps(given).encode(),
        {**config.headers, "Content-Type": "application/json"},
    )
    try:
        secure = urllib.request.HTTPSHandler(context=config.trust.context())
        opener = urllib.request.build_opener(_Straight, secure)
        opener.open(request, timeout=config.timeout_seconds).close()
    except urllib.error.HTTPError as error:
        msg = f"the collector at {base} did not take the event ({error.code}): {_reason(error)}"
        raise StagelensError(msg) from error
    except (OSError, ValueError) as error:
        cause = getattr(error, "reason", error)
        msg = (
            f"there is no collector at {base} ({cause}).\n"
            f"    Start one with `stagelens up`, or set OTEL_EXPORTER_OTLP_ENDPOINT (default {DEFAULT_ENDPOINT})"
        )
        raise StagelensError(msg) from error
    return 0


class _Straight(urllib.request.HTTPRedirectHandler):
    """Follows no redirection: the event would stay behind, and the headers with their secrets would go elsewhere."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def _reason(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.loads(error.read(_MAX_ANSWER_BYTES))["message"])
    except (OSError, ValueError, KeyError, TypeError):
        return "it did not say why; is it the collector of Stagelens?"
