"""The collector's settings, read once at the start.

STAGELENS_DATABASE          sqlite:///stagelens.db   where everything is kept
STAGELENS_COLLECTOR_HOST    127.0.0.1                the address to listen on
STAGELENS_COLLECTOR_PORT    4318                     the port; 0 takes a free one
STAGELENS_MAX_BODY          8MiB                     the largest request, as it comes
STAGELENS_MAX_INFLATED      64MiB                    the largest request, inflated
STAGELENS_QUEUE_BATCHES     1000                     how many requests may wait for the store
STAGELENS_QUEUE_SIZE        32MiB                    how much they may hold together, inflated
STAGELENS_RETENTION_10S     24h                      how long points are kept at 10 s
STAGELENS_RETENTION_1M      14d                      ... at 1 min
STAGELENS_RETENTION_1H      395d                     ... at 1 h
STAGELENS_RETENTION_TRACES  7d                       how long kept traces are kept
STAGELENS_DASHBOARD_URL     http://127.0.0.1:8600    where people find the dashboard
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from ..core.errors import ConfigError
from ..core.settings import parse_duration, parse_size
from .store import Retention

# The port the OpenTelemetry specification gives to OTLP/HTTP.
DEFAULT_PORT = 4318
MAX_PORT = 65_535


@dataclass(frozen=True, slots=True)
class CollectorConfig:
    """Where the collector listens, what it accepts and where it keeps it.

    Args:
        database: The URL of the database.
        host: The address to listen on.
        port: The port; 0 takes a free one.
        max_body_bytes: The largest request, as it comes.
        max_inflated_bytes: The largest request, inflated.
        queue_batches: How many requests may wait for the store.
        queue_bytes: How many bytes they may hold together, inflated.
        retention: How long things are kept.
        dashboard_url: Where people find the dashboard.
    """

    database: str = "sqlite:///stagelens.db"
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    max_body_bytes: int = 8 * 1024**2
    max_inflated_bytes: int = 64 * 1024**2
    queue_batches: int = 1000
    queue_bytes: int = 32 * 1024**2
    retention: Retention = field(default_factory=Retention)
    dashboard_url: str = "http://127.0.0.1:8600"

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> CollectorConfig:
        """Read the settings from *env*; an empty value is as good as none.

        Raises:
            ConfigError: A value is not what its key allows.
        """
        default = cls()

        def size(key: str, otherwise: int) -> int:
            return _positive(key, env[key], parse_size(env[key], key)) if env.get(key) else otherwise

        return cls(
            database=env.get("STAGELENS_DATABASE") or default.database,
            host=env.get("STAGELENS_COLLECTOR_HOST") or default.host,
            port=_count(env, "STAGELENS_COLLECTOR_PORT", default.port, 0, MAX_PORT),
            max_body_bytes=size("STAGELENS_MAX_BODY", default.max_body_bytes),
            max_inflated_bytes=size("STAGELENS_MAX_INFLATED", default.max_inflated_bytes),
            queue_batches=_count(env, "STAGELENS_QUEUE_BATCHES", default.queue_batches, 1, 1_000_000),
            queue_bytes=size("STAGELENS_QUEUE_SIZE", default.queue_bytes),
            retention=_retention(env),
            dashboard_url=env.get("STAGELENS_DASHBOARD_URL") or default.dashboard_url,
        )


def _retention(env: Mapping[str, str]) -> Retention:
    default = Retention()

    def kept(key: str, otherwise: timedelta) -> timedelta:
        if not env.get(key):
            return otherwise
        given = parse_duration(env[key], key)
        _positive(key, env[key], given.total_seconds())
        return given

    return Retention(
        seconds_10=kept("STAGELENS_RETENTION_10S", default.seconds_10),
        minutes=kept("STAGELENS_RETENTION_1M", default.minutes),
        hours=kept("STAGELENS_RETENTION_1H", default.hours),
        traces=kept("STAGELENS_RETENTION_TRACES", default.traces),
    )


def _positive(key: str, text: str, value: float) -> int:
    if value < 1:
        msg = f"{key} is {text!r}; it must be more than nothing"
        raise ConfigError(msg)
    return int(value)


def _count(env: Mapping[str, str], key: str, otherwise: int, low: int, high: int) -> int:
    text = env.get(key)
    if not text:
        return otherwise
    if not (text.isascii() and text.isdigit() and low <= int(text[:10]) <= high and len(text) <= len(str(high))):
        msg = f"{key} is {text!r}; write a whole number from {low} to {high}, such as {otherwise}"
        raise ConfigError(msg)
    return int(text)
