"""Configuration of the collector: settings from the environment, and the file STAGELENS_COLLECTOR_CONFIG.

`core/settings/schema.py` lists the settings, which are read at the start. The file has sections for access, span rules, scrape
targets, Prometheus labels and forwarding, each with its own reader. It is read again when it or a secret file in it changes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from ..core.background_tasks import PeriodicThread
from ..core.egress import EgressPolicy
from ..core.errors import ConfigError
from ..core.settings.live_file import FileError, LiveFile, read_document, spell_problem
from ..core.settings.values import parse_size, require_positive
from ..core.settings.yaml_config import Fields
from ..store.store_factory import StoreConfig
from .forward.config import Destination, read_destinations
from .prometheus import PrometheusSettings, read_prometheus
from .scrape.config import ScrapeTarget, read_targets
from .server.access_config import Access, read_access, tokens_from_env
from .traces.rule_config import read_rules
from .traces.rules import Rule

_log = logging.getLogger(__name__)

_CHECK_SECONDS = 2.0
# The ports the OpenTelemetry specification gives to OTLP/HTTP and OTLP/gRPC.
DEFAULT_PORT, DEFAULT_GRPC_PORT = 4318, 4317
MAX_PORT = 65_535
_YES, _NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


@dataclass(frozen=True, slots=True)
class CollectorConfig(StoreConfig):
    """Addresses, limits and database of the collector.

    Args:
        host: The address to listen on.
        port: Port for HTTP; 0 for any free port.
        grpc_port: Port for gRPC; 0 for any free port, None to disable gRPC.
        config_file: File with access, span rules, scrape targets and forwarding, see `CollectorFile`.
        is_open: Whether senders without credentials are accepted on any address.
        max_body_bytes: Maximum size of a request as received.
        max_inflated_bytes: Maximum size of a request after decompression.
        queue_batches: Maximum number of requests that wait for the store.
        queue_bytes: Maximum total size of these requests after decompression.
        keeps_all_traces: Whether all requests assembled from spans are retained as traces, not only the slowest.
        spans_waiting_bytes: Maximum size of spans that wait until their requests are complete.
        dashboard_url: URL of the dashboard, for messages.
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
        """Read the settings from *env*; an empty value selects the default.

        Raises:
            ConfigError: A value is invalid.
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
    # With any free port for HTTP, several collectors run on the machine: gRPC takes any free port, too.
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


@dataclass(frozen=True, slots=True)
class CollectorFile:
    """Content of the collector's file, or the corresponding settings of the environment.

    Args:
        access: Credentials and limits of clients.
        rules: Span rules, applied before the built-in ones.
        scrape: Scrape targets.
        prometheus: Settings of the histograms on /metrics.
        forward: Forwarding destinations.
        files: Further files that were read: files with secrets.
        warnings: Probable mistakes, each with file, line and text.
    """

    access: Access = field(default_factory=Access)
    rules: tuple[Rule, ...] = ()
    scrape: tuple[ScrapeTarget, ...] = ()
    prometheus: PrometheusSettings = field(default_factory=PrometheusSettings)
    forward: tuple[Destination, ...] = ()
    files: tuple[Path, ...] = ()
    warnings: tuple[str, ...] = ()


def read_collector_file(path: Path | None, env: Mapping[str, str], held: dict[str, str] | None = None) -> CollectorFile:
    """Read the collector's file at *path*; without a file, the settings of the environment.

    Args:
        path: The file.
        env: The environment, for secrets.
        held: Previous secrets by path of their files; the current secrets are added.

    Raises:
        ConfigError: The file is invalid; the message has a line for each error.
    """
    own, egress_policy = tokens_from_env(env), EgressPolicy.from_env(env)
    found = CollectorFile(Access(tokens=own))
    if path is None:
        return found
    document = read_document(path, "the collector's file")
    if document.value is not None:
        fields = Fields(document, (), document.value, example="access: {tokens: []}")
        sections = ("access", "rules", "scrape", "prometheus", "forward")
        access, rules, scrape, prometheus, forward = (fields.value(key) for key in sections)
        fields.finish()
        found_access = read_access(document, ("access",), access or {}, env, {} if held is None else held)
        found = CollectorFile(
            replace(found_access.access, tokens=(*found_access.access.tokens, *own)),
            read_rules(document, ("rules",), rules or {}),
            read_targets(document, ("scrape",), scrape or {}, egress_policy),
            read_prometheus(document, ("prometheus",), prometheus or {}),
            read_destinations(document, ("forward",), forward or {}, env, egress_policy),
            found_access.files,
        )
    if document.problems:
        raise FileError(path, document.problems)
    return replace(found, warnings=tuple(spell_problem(path, warning) for warning in document.warnings))


class _File(LiveFile[CollectorFile]):
    """Watched collector's file; each new content is logged."""

    def accepted(self, found: CollectorFile) -> None:
        counts = len(found.access.tokens), len(found.rules), len(found.scrape), len(found.forward)
        _log.info("%s is in force: %d tokens, %d rules, %d targets, %d destinations", self.path, *counts)
        for line in found.warnings:
            _log.warning("%s", line)


class LiveConfig(PeriodicThread):
    """The collector's file, read again when it changes; an invalid file leaves the previous content in force.

    Args:
        path: The file; None for no file.
        env: The environment, for secrets.

    Attributes:
        env: The environment, for secrets.

    Raises:
        ConfigError: The file is invalid; the message has a line for each error.
    """

    def __init__(self, path: Path | None, env: Mapping[str, str]) -> None:
        super().__init__("config", rest_seconds=_CHECK_SECONDS)
        held: dict[str, str] = {}
        self.env = env
        self._first = read_collector_file(path, env, held)
        self._live = _File(path, lambda path: self._again(path, env, held), lambda found: found.files)
        self.refresh()

    @property
    def current(self) -> CollectorFile:
        """Content of the file that is in force."""
        return self._live.current or self._first

    @property
    def errors(self) -> tuple[str, ...]:
        """Errors of the current file; empty if it is valid."""
        return self._live.errors

    def refresh(self) -> None:
        """Read the file if it has changed."""
        self._live.refresh(datetime.now(UTC))

    def step(self) -> float:
        """Read the file if it has changed; on errors the previous content stays in force."""
        self.refresh()
        return _CHECK_SECONDS

    def _again(self, path: Path, env: Mapping[str, str], held: dict[str, str]) -> CollectorFile:
        found = read_collector_file(path, env, held)
        if self.current.access.asks and not found.access.asks:
            # A partly written file has the same symptom.
            msg = f"{path}: it has neither tokens nor a client_ca, so all senders would be accepted; restart if that is intended"
            raise ConfigError(msg)
        if found.access.tls != self._first.access.tls:
            _log.warning("%s: restart to apply the changed access.tls", path)
        return replace(found, access=replace(found.access, tls=self._first.access.tls))
