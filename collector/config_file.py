"""The collector's file, STAGELENS_COLLECTOR_CONFIG: access, span rules, scrape targets, Prometheus labels and forwarding.

Each section has its own reader. The file is read again when it or a secret file in it changes.
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
from ..core.settings.yaml_config import Fields
from .forward import config as forward_section
from .forward.config import Destination
from .prometheus import config as prometheus_section
from .prometheus.config import PrometheusSettings as Prometheus
from .scrape import config as scrape_section
from .scrape.config import Target
from .server import access_config as access_section
from .server.access_config import Access
from .traces import rule_config as rules_section
from .traces.rules import Rule

_log = logging.getLogger(__name__)

_CHECK_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class CollectorFile:
    """Content of the file, or the corresponding settings of the environment.

    Args:
        access: Credentials and limits of clients.
        rules: Span rules, applied before the built-in ones.
        scrape: Scrape targets.
        prometheus: Settings of the histograms on /metrics.
        forward: Forwarding destinations.
        files: Further files it was read from.
        warnings: Probable mistakes: file, line, text.
    """

    access: Access = field(default_factory=Access)
    rules: tuple[Rule, ...] = ()
    scrape: tuple[Target, ...] = ()
    prometheus: Prometheus = field(default_factory=Prometheus)
    forward: tuple[Destination, ...] = ()
    files: tuple[Path, ...] = ()
    warnings: tuple[str, ...] = ()


def read_collector_file(path: Path | None, env: Mapping[str, str], held: dict[str, str] | None = None) -> CollectorFile:
    """Read the file at *path*, if there is one.

    Args:
        path: The file.
        env: The environment, for secrets.
        held: Previous secrets by path of their files; the current ones are added.

    Raises:
        ConfigError: The file is invalid; a line for each error.
    """
    own, egress_policy = access_section.tokens_from_env(env), EgressPolicy.from_env(env)
    found = CollectorFile(Access(tokens=own))
    if path is None:
        return found
    document = read_document(path, "the collector's file")
    if document.value is not None:
        fields = Fields(document, (), document.value, example="access: {tokens: []}")
        sections = ("access", "rules", "scrape", "prometheus", "forward")
        access, rules, scrape, told, forward = (fields.value(key) for key in sections)
        fields.finish()
        who = access_section.read_access(document, ("access",), access or {}, env, {} if held is None else held)
        found = CollectorFile(
            replace(who.access, tokens=(*who.access.tokens, *own)),
            rules_section.read_rules(document, ("rules",), rules or {}),
            scrape_section.read_targets(document, ("scrape",), scrape or {}, egress_policy),
            prometheus_section.read_prometheus(document, ("prometheus",), told or {}),
            forward_section.read_destinations(document, ("forward",), forward or {}, env, egress_policy),
            who.files,
        )
    if document.problems:
        raise FileError(path, document.problems)
    return replace(found, warnings=tuple(spell_problem(path, warning) for warning in document.warnings))


class _File(LiveFile[CollectorFile]):
    """Watched file with log messages."""

    def accepted(self, found: CollectorFile) -> None:
        counts = len(found.access.tokens), len(found.rules), len(found.scrape), len(found.forward)
        _log.info("%s is in force: %d tokens, %d rules, %d targets, %d destinations", self.path, *counts)
        for line in found.warnings:
            _log.warning("%s", line)


class LiveConfig(PeriodicThread):
    """The file, read again when it changes; an invalid file leaves the previous content in force.

    Args:
        path: The file, or None where there is none.
        env: The environment, for secrets.

    Attributes:
        env: The same.

    Raises:
        ConfigError: Something in it is wrong, a line for each.
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
        """The content in force."""
        return self._live.current or self._first

    @property
    def errors(self) -> tuple[str, ...]:
        """Errors of the current file; empty if it is valid."""
        return self._live.errors

    def refresh(self) -> None:
        """Read the file if it has changed."""
        self._live.refresh(datetime.now(UTC))

    def step(self) -> float:
        """Check the file; on errors the previous content stays in force."""
        self.refresh()
        return _CHECK_SECONDS

    def _again(self, path: Path, env: Mapping[str, str], held: dict[str, str]) -> CollectorFile:
        found = read_collector_file(path, env, held)
        if self.current.access.asks and not found.access.asks:
            # A file that is only half written looks like this.
            msg = f"{path}: it would let in everybody, for it names neither tokens nor a client_ca; restart if that is meant"
            raise ConfigError(msg)
        if found.access.tls != self._first.access.tls:
            _log.warning("%s: what access.tls names now is used after a restart", path)
        return replace(found, access=replace(found.access, tls=self._first.access.tls))
