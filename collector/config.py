"""Collector settings from the environment, read at the start; `core/settings/schema.py` lists them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import ConfigError
from ..core.settings.values import parse_size, require_positive
from ..store.store_factory import StoreConfig

# The ports the OpenTelemetry specification gives to OTLP/HTTP and OTLP/gRPC.
DEFAULT_PORT, DEFAULT_GRPC_PORT = 4318, 4317
MAX_PORT = 65_535
_YES, _NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


@dataclass(frozen=True, slots=True)
class CollectorConfig(StoreConfig):
    """Where the collector listens, what it accepts and where it keeps it.

    Args:
        host: The address to listen on.
        port: The port for HTTP; 0 takes a free one.
        grpc_port: The port for gRPC; 0 takes a free one, None does without.
        config_file: A file that says who may send, how spans are read and what is scraped, see `config_file`.
        is_open: Whether those are let in who show neither token nor certificate, wherever it listens.
        max_body_bytes: The largest request, as it comes.
        max_inflated_bytes: The largest request, inflated.
        queue_batches: How many requests may wait for the store.
        queue_bytes: How many bytes they may hold together, inflated.
        keeps_all_traces: Whether all requests made of spans are kept as traces, not the tail alone.
        spans_waiting_bytes: How much room spans may take that wait for their requests to be whole.
        dashboard_url: Where people find the dashboard.
    """

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
    dashboard_url: str = "http://127.0.0.1:8600"

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> CollectorConfig:
        """Read the settings from *env*; an empty value is as good as none.

        Raises:
            ConfigError: A value is not what its key allows.
        """
        default, kept = cls(), StoreConfig.from_env(env)

        def size(key: str, otherwise: int) -> int:
            return require_positive(key, env[key], parse_size(env[key], key)) if env.get(key) else otherwise

        port = _count(env, "STAGELENS_COLLECTOR_PORT", default.port, 0, MAX_PORT)
        return cls(
            database=kept.database,
            points=kept.points,
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
            retention=kept.retention,
            dashboard_url=env.get("STAGELENS_DASHBOARD_URL") or default.dashboard_url,
        )


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


def _count(env: Mapping[str, str], key: str, otherwise: int, low: int, high: int) -> int:
    text = env.get(key)
    if not text:
        return otherwise
    if not (text.isascii() and text.isdigit() and low <= int(text[:10]) <= high and len(text) <= len(str(high))):
        msg = f"{key} is {text!r}; write a whole number from {low} to {high}, such as {otherwise}"
        raise ConfigError(msg)
    return int(text)
