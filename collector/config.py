"""Configuration of the collector: settings from the environment, and the file STAGELENS_COLLECTOR_CONFIG, which is reloaded on change."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field

from ..core import health_probes
from ..core.background_tasks import PeriodicThread
from ..core.egress import EgressPolicy
from ..core.errors import ConfigError
from ..core.health_probes import ProbePolicy
from ..core.settings.field_types import Port, Size, reject_value
from ..core.settings.live_file import FileError, LiveFile, read_document, spell_problem
from ..core.settings.section import Section, read_section
from ..store.store_factory import StoreConfig
from .prometheus_config import PrometheusSettings, read_prometheus
from .scrape.config import ScrapeTarget, read_targets
from .server.access_config import Access, read_access, tokens_from_env
from .traces.rule_config import Rule, read_rules

_log = logging.getLogger(__name__)

_CHECK_SECONDS = 2.0
# The ports the OpenTelemetry specification gives to OTLP/HTTP and OTLP/gRPC.
DEFAULT_PORT, DEFAULT_GRPC_PORT = 4318, 4317
_GRPC_PORT = "STAGELENS_COLLECTOR_GRPC_PORT"


def _without_grpc(value: object) -> object:
    return None if str(value).lower() == "off" else value


def _is_all(value: object) -> object:
    if not isinstance(value, str):
        return value
    if value.lower() not in ("tail", "all"):
        reject_value("write tail (the slowest, errors and a few others) or all")
    return value.lower() == "all"


def _probes(value: object) -> object:
    try:
        return ProbePolicy.parse(value) if isinstance(value, str) else value
    except ConfigError as error:
        reject_value(str(error))


class CollectorConfig(StoreConfig):
    host: str = Field(default="127.0.0.1", validation_alias="STAGELENS_COLLECTOR_HOST")
    port: Port = Field(default=DEFAULT_PORT, validation_alias="STAGELENS_COLLECTOR_PORT", examples=["4318"])
    grpc_port: Annotated[Port | None, BeforeValidator(_without_grpc)] = Field(
        default=None, validation_alias=_GRPC_PORT, examples=["4317"]
    )
    config_file: Path | None = Field(default=None, validation_alias="STAGELENS_COLLECTOR_CONFIG")
    is_open: bool = Field(default=False, validation_alias="STAGELENS_COLLECTOR_OPEN")
    max_body_bytes: Size = Field(default=8 * 1024**2, validation_alias="STAGELENS_MAX_BODY", examples=["8MiB"])
    max_inflated_bytes: Size = Field(
        default=32 * 1024**2, validation_alias="STAGELENS_MAX_INFLATED", examples=["32MiB"]
    )
    queue_batches: int = Field(
        default=1000, validation_alias="STAGELENS_QUEUE_BATCHES", ge=1, le=1_000_000, examples=["1000"]
    )
    queue_bytes: Size = Field(default=32 * 1024**2, validation_alias="STAGELENS_QUEUE_SIZE", examples=["32MiB"])
    keeps_all_traces: Annotated[bool, BeforeValidator(_is_all)] = Field(
        default=False, validation_alias="STAGELENS_TRACES"
    )
    spans_waiting_bytes: Size = Field(
        default=256 * 1024**2, validation_alias="STAGELENS_SPANS_WAITING", examples=["256MiB"]
    )
    probes: Annotated[ProbePolicy, BeforeValidator(_probes)] = Field(
        default=ProbePolicy(), validation_alias=health_probes.VARIABLE
    )
    dashboard_url: str = Field(default="http://127.0.0.1:8600", validation_alias="STAGELENS_DASHBOARD_URL")

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Self:
        """Read the settings from *env*; an empty value selects the default."""
        config = super().from_env(env)
        if env.get(_GRPC_PORT, "").strip():
            return config
        # With any free port for HTTP, several collectors run on the machine: gRPC takes any free port, too.
        return config.model_copy(update={"grpc_port": DEFAULT_GRPC_PORT if config.port else 0})


@dataclass(frozen=True, slots=True)
class CollectorFile:
    access: Access = field(default_factory=Access)
    rules: tuple[Rule, ...] = ()
    scrape: tuple[ScrapeTarget, ...] = ()
    prometheus: PrometheusSettings = field(default_factory=PrometheusSettings)
    files: tuple[Path, ...] = ()  # further files that were read: files with secrets
    warnings: tuple[str, ...] = ()  # probable mistakes, each with file, line and text


class _Sections(Section):
    """The file; each section has its own reader, so that one pass finds the errors of all of them."""

    example = "access: {tokens: []}"

    access: Any = None
    rules: Any = None
    scrape: Any = None
    prometheus: Any = None


def read_collector_file(path: Path | None, env: Mapping[str, str], held: dict[str, str] | None = None) -> CollectorFile:
    """Read the collector's file at *path*; without a file, the settings of *env*.

    *held* has the previous secrets by path of their files; the current ones are added.
    """
    env_tokens, egress_policy = tokens_from_env(env), EgressPolicy.from_env(env)
    collector_file = CollectorFile(Access(tokens=env_tokens))
    if path is None:
        return collector_file
    document = read_document(path, "the collector's file")
    if document.value is not None:
        read_section(_Sections, document, (), document.value)
        sections = document.value if isinstance(document.value, dict) else {}
        access, rules, scrape, prometheus = (sections.get(key) or {} for key in _Sections.model_fields)
        found_access = read_access(document, ("access",), access, env, {} if held is None else held)
        collector_file = CollectorFile(
            replace(found_access.access, tokens=(*found_access.access.tokens, *env_tokens)),
            read_rules(document, ("rules",), rules),
            read_targets(document, ("scrape",), scrape, egress_policy),
            read_prometheus(document, ("prometheus",), prometheus),
            found_access.files,
        )
    if document.problems:
        raise FileError(path, document.problems)
    return replace(collector_file, warnings=tuple(spell_problem(path, warning) for warning in document.warnings))


class _File(LiveFile[CollectorFile]):
    def accepted(self, content: CollectorFile) -> None:
        counts = len(content.access.tokens), len(content.rules), len(content.scrape)
        _log.info("%s is in effect: %d tokens, %d rules, %d targets", self.path, *counts)
        for line in content.warnings:
            _log.warning("%s", line)


class LiveConfig(PeriodicThread):
    """The collector's file, read again when it changes; an invalid file leaves the previous content in force."""

    def __init__(self, path: Path | None, env: Mapping[str, str]) -> None:
        super().__init__("config", rest_seconds=_CHECK_SECONDS)
        held: dict[str, str] = {}
        self.env = env
        self.current = read_collector_file(path, env, held)
        self._tls = self.current.access.tls
        self._live = _File(path, lambda path: self._again(path, env, held), lambda collector_file: collector_file.files)
        self.refresh()

    @property
    def errors(self) -> tuple[str, ...]:
        return self._live.errors

    def refresh(self) -> None:
        self._live.refresh(datetime.now(UTC))
        self.current = self._live.current or self.current

    def step(self) -> float:
        self.refresh()
        return _CHECK_SECONDS

    def _again(self, path: Path, env: Mapping[str, str], held: dict[str, str]) -> CollectorFile:
        collector_file = read_collector_file(path, env, held)
        if self.current.access.requires_credentials and not collector_file.access.requires_credentials:
            # A partly written file has the same symptom.
            msg = f"{path}: it has neither tokens nor a client_ca, so all senders would be accepted; restart if that is intended"
            raise ConfigError(msg)
        if read_document(path, "the collector's file").value is None:
            msg = f"{path} is empty, as after a write to a full disk; restart if that is intended"
            raise ConfigError(msg)
        if collector_file.access.tls != self._tls:
            _log.warning("%s: restart to apply the changed access.tls", path)
        return replace(collector_file, access=replace(collector_file.access, tls=self._tls))
