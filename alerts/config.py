"""Settings of the alerts service, read from environment variables at startup; `core/settings/schema.py` lists them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from ..core.egress import EgressPolicy
from ..core.errors import ConfigError
from ..core.settings.values import parse_duration

DEFAULT_FILE = Path("slo.yaml")
DEFAULT_DASHBOARD = "http://127.0.0.1:8600"
DEFAULT_METRICS_HOST = "127.0.0.1"
MAX_PORT = 65_535


@dataclass(frozen=True, slots=True)
class AlertsConfig:
    """Settings of the alerts service.

    Args:
        slo_file: Path of the SLO file; None means that no SLO is evaluated.
        interval: Evaluation interval.
        dashboard_url: Base URL of links in messages, unless the SLO file defines one.
        env: Environment variables with the secrets that the SLO file names.
        metrics_host: Listen address of the metrics endpoint.
        metrics_port: Port of the metrics endpoint, 0 for a free port; None for no endpoint.
    """

    slo_file: Path | None = None
    interval: timedelta = timedelta(seconds=10)
    dashboard_url: str = DEFAULT_DASHBOARD
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    metrics_host: str = DEFAULT_METRICS_HOST
    metrics_port: int | None = None

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> AlertsConfig:
        """Read STAGELENS_SLO_FILE, STAGELENS_ALERT_INTERVAL, STAGELENS_DASHBOARD_URL and STAGELENS_ALERTS_METRICS_….

        Raises:
            ConfigError: A value is invalid.
        """
        interval = parse_duration(env.get("STAGELENS_ALERT_INTERVAL") or "10s", "STAGELENS_ALERT_INTERVAL")
        if interval < timedelta(seconds=1):
            msg = f"STAGELENS_ALERT_INTERVAL is {interval.total_seconds():g}s; write at least 1s, such as 10s"
            raise ConfigError(msg)
        url = env.get("STAGELENS_DASHBOARD_URL") or DEFAULT_DASHBOARD
        if not url.startswith(("http://", "https://")):
            msg = f"STAGELENS_DASHBOARD_URL is {url!r}; write a web address, such as {DEFAULT_DASHBOARD}"
            raise ConfigError(msg)
        EgressPolicy.from_env(env)  # reports errors at startup instead of with the first page
        host = env.get("STAGELENS_ALERTS_METRICS_HOST") or DEFAULT_METRICS_HOST
        return cls(_slo_file(env), interval, url.rstrip("/"), dict(env), host, _metrics_port(env))


def _slo_file(env: Mapping[str, str]) -> Path | None:
    given = env.get("STAGELENS_SLO_FILE")
    if not given:
        return DEFAULT_FILE if DEFAULT_FILE.exists() else None
    path = Path(given)
    if not path.is_file():
        msg = f"STAGELENS_SLO_FILE is {given!r}, which is not a file; give the path of an SLO file, such as slo.yaml"
        raise ConfigError(msg)
    return path


def _metrics_port(env: Mapping[str, str]) -> int | None:
    given = env.get("STAGELENS_ALERTS_METRICS_PORT")
    if not given:
        return None
    if not given.isdecimal() or int(given) > MAX_PORT:
        msg = f"STAGELENS_ALERTS_METRICS_PORT is {given!r}; write a port between 0 and {MAX_PORT}, such as 9464"
        raise ConfigError(msg)
    return int(given)
