"""Settings of the alerts service, read from environment variables at startup; `core/settings/schema.py` lists them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, Field

from ..core.egress import EgressPolicy
from ..core.errors import ConfigError
from ..core.settings.field_types import Duration, ExistingFile, Port, reject_value
from ..core.settings.section import Settings

DEFAULT_FILE = Path("slo.yaml")
DEFAULT_DASHBOARD = "http://127.0.0.1:8600"


def _base_url(url: str) -> str:
    if not url.startswith(("http://", "https://")):
        reject_value("write a web address")
    return url.rstrip("/")


class AlertsConfig(Settings):
    slo_file: ExistingFile | None = Field(default=None, validation_alias="STAGELENS_SLO_FILE", examples=["slo.yaml"])
    interval: Duration = Field(
        default=timedelta(seconds=10), validation_alias="STAGELENS_ALERT_INTERVAL", examples=["10s"]
    )
    dashboard_url: Annotated[str, AfterValidator(_base_url)] = Field(
        default=DEFAULT_DASHBOARD, validation_alias="STAGELENS_DASHBOARD_URL", examples=[DEFAULT_DASHBOARD]
    )
    env: Mapping[str, str] = Field(default_factory=dict[str, str], repr=False)
    metrics_host: str = Field(default="127.0.0.1", validation_alias="STAGELENS_ALERTS_METRICS_HOST")
    metrics_port: Port | None = Field(default=None, validation_alias="STAGELENS_ALERTS_METRICS_PORT", examples=["9464"])

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Self:
        """Read the settings from *env*; the default of the SLO file is `slo.yaml`, if it exists."""
        config = super().from_env(env)
        if config.interval < timedelta(seconds=1):
            msg = f"STAGELENS_ALERT_INTERVAL is {config.interval.total_seconds():g}s; write at least 1s, such as 10s"
            raise ConfigError(msg)
        EgressPolicy.from_env(env)  # reports errors at startup instead of with the first page
        default = DEFAULT_FILE if DEFAULT_FILE.exists() else None
        return config.model_copy(update={"slo_file": config.slo_file or default, "env": dict(env)})
