"""Collector settings from the environment, read at the start; `core/options.py` lists them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from ..core.errors import ConfigError
from ..core.settings.values import format_size, parse_duration, parse_size
from ..store import Retention

# The ports the OpenTelemetry specification gives to OTLP/HTTP and OTLP/gRPC.
DEFAULT_PORT, DEFAULT_GRPC_PORT = 4318, 4317
MAX_PORT = 65_535
_YES, _NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
DEFAULT_BUDGET_BYTES = 10 * 1024**3
# Less does not hold the tables, and what comes between two looks at the size.
MIN_BUDGET_BYTES = 16 * 1024**2


@dataclass(frozen=True, slots=True)
class CollectorConfig:
    """Settings of the collector.

    Args:
        database: URL of the database.
        points: URL of the ClickHouse database for histograms; None to keep them in *database*.
        host: Address to listen on.
        port: HTTP port; 0 for a free one.
        grpc_port: gRPC port; 0 for a free one, None for no gRPC.
        config_file: The collector's file, see `config_file`.
        is_open: Whether clients without credentials are admitted on any address.
        max_body_bytes: Size limit of a request as received.
        max_inflated_bytes: Size limit of a request, inflated.
        queue_batches: Limit of batches that wait for the store.
        queue_bytes: Limit of their inflated size.
        keeps_all_traces: Whether all requests made from spans are retained as traces, not only a sample.
        spans_waiting_bytes: Size limit of spans that wait for their requests.
        retention: Retention times, and the size limit of the store.
        dashboard_url: URL of the dashboard.
    """

    database: str = "sqlite:///stagelens.db"
    points: str | None = None
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    grpc_port: int | None = None
    config_file: Path | None = None
    is_open: bool = False
    max_body_bytes: int = 8 * 1024**2
    max_inflated_bytes: int = 32 * 1024**2
    queue_batches: int = 1000
    queue_bytes: int = 32 * 1024**2
    keeps_all_traces: bool = False
    spans_waiting_bytes: int = 256 * 1024**2
    retention: Retention = field(default_factory=lambda: Retention(budget_bytes=DEFAULT_BUDGET_BYTES))
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

        port = _count(env, "STAGELENS_COLLECTOR_PORT", default.port, 0, MAX_PORT)
        return cls(
            database=env.get("STAGELENS_DATABASE") or default.database,
            points=env.get("STAGELENS_POINTS") or default.points,
            host=env.get("STAGELENS_COLLECTOR_HOST") or default.host,
            port=port,
            grpc_port=_grpc_port(env, port),
            config_file=Path(env["STAGELENS_COLLECTOR_CONFIG"]) if env.get("STAGELENS_COLLECTOR_CONFIG") else None,
            is_open=_switch(env, "STAGELENS_COLLECTOR_OPEN"),
            max_body_bytes=size("STAGELENS_MAX_BODY", default.max_body_bytes),
            max_inflated_bytes=size("STAGELENS_MAX_INFLATED", default.max_inflated_bytes),
            queue_batches=_count(env, "STAGELENS_QUEUE_BATCHES", default.queue_batches, 1, 1_000_000),
            queue_bytes=size("STAGELENS_QUEUE_SIZE", default.queue_bytes),
            keeps_all_traces=_keeps_all_traces(env),
            spans_waiting_bytes=size("STAGELENS_SPANS_WAITING", default.spans_waiting_bytes),
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
        budget_bytes=_budget(env.get("STAGELENS_STORAGE_BUDGET") or ""),
    )


def _budget(text: str) -> int | None:
    if not text:
        return DEFAULT_BUDGET_BYTES
    if text.strip().lower() in ("0", "none"):
        return None
    key = "STAGELENS_STORAGE_BUDGET"
    size = parse_size(text, key)
    if size < MIN_BUDGET_BYTES:
        msg = f"{key} is {text!r}; it must be at least {format_size(MIN_BUDGET_BYTES)}, or none for as large as it gets"
        raise ConfigError(msg)
    return size


def _grpc_port(env: Mapping[str, str], http_port: int) -> int | None:
    key = "STAGELENS_COLLECTOR_GRPC_PORT"
    if (env.get(key) or "").strip().lower() == "off":
        return None
    # Who takes any port for HTTP means to run beside others.
    return _count(env, key, 0 if http_port == 0 else DEFAULT_GRPC_PORT, 0, MAX_PORT)


def _keeps_all_traces(env: Mapping[str, str]) -> bool:
    text = (env.get("STAGELENS_TRACES") or "tail").strip().lower()
    if text not in ("tail", "all"):
        msg = f"STAGELENS_TRACES is {text!r}; write tail (the slowest, errors and a few others) or all"
        raise ConfigError(msg)
    return text == "all"


def _switch(env: Mapping[str, str], key: str) -> bool:
    text = (env.get(key) or "false").strip().lower()
    if text not in _YES + _NO:
        msg = f"{key} is {text!r}; write true or false"
        raise ConfigError(msg)
    return text in _YES


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
