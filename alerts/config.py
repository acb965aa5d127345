"""The settings of the alerts, read once from the environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from ..core.errors import ConfigError
from ..core.settings import parse_duration

DEFAULT_FILE = Path("slo.yaml")
DEFAULT_DASHBOARD = "http://127.0.0.1:8600"


@dataclass(frozen=True, slots=True)
class AlertsConfig:
    """How alerts run.

    Args:
        slo_file: The SLOs and channels; None when there is no file, and nothing is watched.
        interval: How often SLOs are evaluated.
        dashboard_url: What links in messages begin with, unless the SLO file says.
        env: Where the secrets named in the SLO file are.
    """

    slo_file: Path | None = None
    interval: timedelta = timedelta(seconds=10)
    dashboard_url: str = DEFAULT_DASHBOARD
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> AlertsConfig:
        """Read STAGELENS_SLO_FILE, STAGELENS_ALERT_INTERVAL and STAGELENS_DASHBOARD_URL.

        Raises:
            ConfigError: One of them is wrong.
        """
        interval = parse_duration(env.get("STAGELENS_ALERT_INTERVAL") or "10s", "STAGELENS_ALERT_INTERVAL")
        if interval < timedelta(seconds=1):
            msg = f"STAGELENS_ALERT_INTERVAL is {interval.total_seconds():g}s; write at least 1s, such as 10s"
            raise ConfigError(msg)
        url = env.get("STAGELENS_DASHBOARD_URL") or DEFAULT_DASHBOARD
        if not url.startswith(("http://", "https://")):
            msg = f"STAGELENS_DASHBOARD_URL is {url!r}; write a web address, such as {DEFAULT_DASHBOARD}"
            raise ConfigError(msg)
        return cls(_slo_file(env), interval, url.rstrip("/"), dict(env))


def _slo_file(env: Mapping[str, str]) -> Path | None:
    given = env.get("STAGELENS_SLO_FILE")
    if not given:
        return DEFAULT_FILE if DEFAULT_FILE.exists() else None
    path = Path(given)
    if not path.is_file():
        msg = f"STAGELENS_SLO_FILE is {given!r}, which is not a file; give the path of an SLO file, such as slo.yaml"
        raise ConfigError(msg)
    return path
