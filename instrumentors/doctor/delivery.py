"""Checks of the delivery: the settings of the agent, and the collector, which gets an empty export."""

from __future__ import annotations

import email.utils
import http.client
import logging
import ssl
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

from ...core.addresses import server_url
from ...core.proxies import ProxyError, proxy_of, through_proxy
from ...core.settings.values import format_size
from ..agent.profile import LOCK_SHARE, SLOW_SHARE
from ..config import AgentConfig
from ..config_file import apply_config_file
from ..export.exporter import DENIED_STATUSES, OK_STATUSES, OWN_HEADERS, RETRY_STATUSES
from ..export.http_post import HttpResponse, origin, post
from ..export.responses import explanation
from .inspection import DoctorFinding, Inspection

HTTP_PORT = 4318
# A user waits for the report, and a collector normally responds immediately.
MAX_TIMEOUT_SECONDS = 5.0
# With a larger skew requests appear in a different minute than the one in which they were served.
MAX_SKEW_SECONDS = 60.0


def check_settings(inspection: Inspection) -> Iterator[DoctorFinding]:
    config, lines = _read_config(inspection)
    yield from (DoctorFinding(line.removeprefix("stagelens: ")) for line in lines)
    if not config.enabled:
        yield DoctorFinding("OTEL_SDK_DISABLED is true: nothing is recorded.", "unset OTEL_SDK_DISABLED")
    env = apply_config_file(inspection.environment)
    named = "service.name=" in env.get("OTEL_RESOURCE_ATTRIBUTES", "")
    if inspection.interpreter and not env.get("OTEL_SERVICE_NAME") and not named:
        yield DoctorFinding(
            f"OTEL_SERVICE_NAME is not set; the service will have the name {inspection.target.name!r}.",
            "OTEL_SERVICE_NAME=checkout",
            hurts=False,
        )


def profiler_state(inspection: Inspection) -> str:
    """Return whether the tail profiler samples call stacks, with its limits; "" if nothing is recorded."""
    config, _ = _read_config(inspection)
    if not config.enabled:
        return ""
    if not config.profile:
        return "off (STAGELENS_PROFILE)"
    limit = f"at most {100 * SLOW_SHARE:g} % of a CPU core, {100 * (SLOW_SHARE + LOCK_SHARE):g} % while requests wait for locks"
    return f"on, {limit}, within the overhead budget of {config.budget}" if config.budget else f"on, {limit}"


def check_collector(inspection: Inspection) -> Iterator[DoctorFinding]:
    config, _ = _read_config(inspection)
    if inspection.alone:
        yield DoctorFinding(
            "No collector responds: in this terminal, the run is summarized when it ends. For a service, start a collector.",
            "stagelens up",
            hurts=False,
        )
    if inspection.saved_here or not config.enabled:
        return
    # One test per collector, even if it has two URLs.
    addresses = {origin(url): url for url in (config.traces_url, config.metrics_url)}
    yield from filter(None, (_try_export(config, url) for url in addresses.values()))


def _read_config(inspection: Inspection) -> tuple[AgentConfig, list[str]]:
    logger, handler = logging.getLogger("stagelens"), _LogLines()
    logger.addHandler(handler)
    propagates, logger.propagate = logger.propagate, False
    try:
        return AgentConfig.from_env(inspection.environment), handler.lines
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagates


class _LogLines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def _try_export(config: AgentConfig, url: str) -> DoctorFinding | None:
    address = origin(url)
    try:
        response = _post_empty_export(config, url)
    except ssl.SSLError as error:
        return DoctorFinding(
            f"{address}: TLS verification failed on one side ({_error_reason(error)}).", _tls_fix(address, error)
        )
    except http.client.HTTPException:
        text = f"{address} does not respond with HTTP/1; it may be the OTLP/gRPC port. No data arrives."
        return DoctorFinding(text, f"OTEL_EXPORTER_OTLP_ENDPOINT={server_url(urlsplit(url).hostname or '', HTTP_PORT)}")
    except (OSError, ValueError) as error:
        fix = f"stagelens up    # or OTEL_EXPORTER_OTLP_ENDPOINT=http://HOST:{HTTP_PORT}"
        fix = f"{error.fix}." if isinstance(error, ProxyError) else fix
        buffer_size = f"{format_size(config.buffer_bytes)} for each process"
        text = f"No collector at {address} ({_error_reason(error)}): data is buffered, up to {buffer_size}, and is lost on exit."
        return DoctorFinding(text, fix)
    if response.status in DENIED_STATUSES:
        fix = "OTEL_EXPORTER_OTLP_HEADERS=authorization=Bearer%20<token>"
        text = "requires a token" if not config.headers else "rejects the token or certificate"
        return DoctorFinding(f"{address} {text} (HTTP {response.status} {explanation(response.body)}).", fix)
    if response.status in OK_STATUSES:
        return _clock_skew(address, response.headers.get("Date") or "")
    text = "does not accept data at present" if response.status in RETRY_STATUSES else "is not an OTLP receiver"
    fix = "" if response.status in RETRY_STATUSES else f"OTEL_EXPORTER_OTLP_ENDPOINT={address}"
    return DoctorFinding(
        f"{address} {text}: POST {urlsplit(url).path}{through_proxy(url)} returned HTTP {response.status} {explanation(response.body)}.",
        fix,
    )


def _post_empty_export(config: AgentConfig, url: str) -> HttpResponse:
    headers = {**config.headers, **OWN_HEADERS}
    # An empty export is a message of zero bytes.
    headers.pop("Content-Encoding")
    timeout = min(config.timeout_seconds, MAX_TIMEOUT_SECONDS)
    return post(url, b"", headers, timeout, config.trust.context, proxy=proxy_of(url))


def _clock_skew(address: str, date: str) -> DoctorFinding | None:
    try:
        ahead = time.time() - email.utils.parsedate_to_datetime(date).timestamp()
    except ValueError:
        return None
    if abs(ahead) <= MAX_SKEW_SECONDS:
        return None
    side = "ahead of" if ahead > 0 else "behind"
    text = f"The clock here is {abs(ahead):,.0f} s {side} that of {address}: requests appear at the wrong time."
    return DoctorFinding(text, "timedatectl set-ntp true    # on the host with the wrong clock")


def _tls_fix(address: str, error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return "OTEL_EXPORTER_OTLP_CERTIFICATE=/path/of/the/authority.pem"
    if "WRONG_VERSION_NUMBER" in str(error):
        return f"OTEL_EXPORTER_OTLP_ENDPOINT={address.replace('https:', 'http:')}    # the collector does not use TLS"
    return "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE=cert.pem OTEL_EXPORTER_OTLP_CLIENT_KEY=key.pem"


def _error_reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
