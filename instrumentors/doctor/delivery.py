"""Checks of the delivery: the settings, and the collector, which gets an empty export."""

from __future__ import annotations

import email.utils
import http.client
import logging
import ssl
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

from ...core.settings.values import format_size
from ..config import AgentConfig
from ..export.exporter import DENIED_STATUSES, OK_STATUSES, OWN_HEADERS, RETRY_STATUSES, explanation, origin
from ..export.http_post import HttpResponse, post
from .environment import Finding, Inspection

HTTP_PORT = 4318
# A person waits; a collector answers at once.
MAX_TIMEOUT_SECONDS = 5.0
# Beyond it requests stand in another minute than the one they were served in.
MAX_SKEW_SECONDS = 60.0


def check_settings(inspection: Inspection) -> Iterator[Finding]:
    """Check that every setting of the agent is valid."""
    config, lines = _config(inspection)
    yield from (Finding(line.removeprefix("stagelens: ")) for line in lines)
    if not config.enabled:
        yield Finding("OTEL_SDK_DISABLED is true: nothing is recorded.", "unset OTEL_SDK_DISABLED")
    named = "service.name=" in inspection.environment.get("OTEL_RESOURCE_ATTRIBUTES", "")
    if inspection.interpreter and not inspection.environment.get("OTEL_SERVICE_NAME") and not named:
        yield Finding(
            f"The service has no name of its own; pages will call it {inspection.target.name!r}.",
            "OTEL_SERVICE_NAME=checkout",
            hurts=False,
        )


def check_collector(inspection: Inspection) -> Iterator[Finding]:
    """Check that the collector accepts exports, and that the clocks agree."""
    config, _ = _config(inspection)
    if inspection.alone:
        yield Finding(
            "No collector answers: started in this terminal, the run is summed up here when it ends. A service needs one.",
            "stagelens up",
            hurts=False,
        )
    if inspection.kept_here or not config.enabled:
        return
    # Of two addresses of one collector one tells.
    addresses = {origin(url): url for url in (config.traces_url, config.metrics_url)}
    yield from filter(None, (_asked(config, url) for url in addresses.values()))


def _config(inspection: Inspection) -> tuple[AgentConfig, list[str]]:
    """Return the agent's settings and the lines that it would log about them."""
    logger, heard = logging.getLogger("stagelens"), _Heard()
    logger.addHandler(heard)
    propagates, logger.propagate = logger.propagate, False
    try:
        return AgentConfig.from_env(inspection.environment), heard.lines
    finally:
        logger.removeHandler(heard)
        logger.propagate = propagates


class _Heard(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def _asked(config: AgentConfig, url: str) -> Finding | None:
    """Return the problem of an export to *url*; None if the export is accepted."""
    place = origin(url)
    try:
        answer = _post(config, url)
    except ssl.SSLError as error:
        return Finding(f"{place} cannot be trusted, or does not trust us ({_reason(error)}).", _tls_fix(place, error))
    except http.client.HTTPException:
        host = urlsplit(url).hostname
        text = f"{place} does not answer in HTTP/1, as OTLP/HTTP does: is it the port of OTLP/gRPC? Nothing arrives."
        return Finding(text, f"OTEL_EXPORTER_OTLP_ENDPOINT=http://{host}:{HTTP_PORT}")
    except (OSError, ValueError) as error:
        fix = f"stagelens up    # or OTEL_EXPORTER_OTLP_ENDPOINT=http://HOST:{HTTP_PORT}"
        room = f"{format_size(config.buffer_bytes)} for each process"
        text = f"Nobody answers at {place} ({_reason(error)}): what is measured waits, up to {room}, and is lost at its end."
        return Finding(text, fix)
    if answer.status in DENIED_STATUSES:
        fix = "OTEL_EXPORTER_OTLP_HEADERS=authorization=Bearer%20<token>"
        text = "lets nobody in without a token" if not config.headers else "does not take the token or certificate"
        return Finding(f"{place} {text} (HTTP {answer.status} {explanation(answer.body)}).", fix)
    if answer.status in OK_STATUSES:
        return _skew(place, answer.headers.get("Date") or "")
    text = "takes nothing now" if answer.status in RETRY_STATUSES else "is no OTLP receiver"
    fix = "" if answer.status in RETRY_STATUSES else f"OTEL_EXPORTER_OTLP_ENDPOINT={place}"
    return Finding(
        f"{place} {text}: POST {urlsplit(url).path} has HTTP {answer.status} {explanation(answer.body)}.", fix
    )


def _post(config: AgentConfig, url: str) -> HttpResponse:
    headers = {**config.headers, **OWN_HEADERS}
    # An export of nothing is a message without a byte.
    headers.pop("Content-Encoding")
    timeout = min(config.timeout_seconds, MAX_TIMEOUT_SECONDS)
    return post(url, b"", headers, timeout, config.trust.context)


def _skew(place: str, date: str) -> Finding | None:
    try:
        ahead = time.time() - email.utils.parsedate_to_datetime(date).timestamp()
    except ValueError:
        return None
    if abs(ahead) <= MAX_SKEW_SECONDS:
        return None
    side = "ahead of" if ahead > 0 else "behind"
    text = f"The clock here is {abs(ahead):,.0f} s {side} that of {place}: requests are shown at a wrong time."
    return Finding(text, "timedatectl set-ntp true    # on the host that is wrong")


def _tls_fix(place: str, error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return "OTEL_EXPORTER_OTLP_CERTIFICATE=/path/of/the/authority.pem"
    if "WRONG_VERSION_NUMBER" in str(error):
        return f"OTEL_EXPORTER_OTLP_ENDPOINT={place.replace('https:', 'http:')}    # it speaks no TLS"
    return "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE=cert.pem OTEL_EXPORTER_OTLP_CLIENT_KEY=key.pem"


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
