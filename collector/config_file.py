"""The collector's file, STAGELENS_COLLECTOR_CONFIG: who may send, how spans are read, what is scraped.

Each section is read by the room it is about. The file is read again when it changes, or a secret does that it names.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from ..core.errors import ConfigError
from ..core.reading.fields import Fields
from ..core.reading.live_file import FileError, LiveFile, read_document, spell_problem
from .access import section as access_section
from .access.clients import Access
from .scrape import section as scrape_section
from .scrape.section import Target
from .traces import section as rules_section
from .traces.rules import Rule

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class CollectorFile:
    """What the file says, with what the environment says in its place.

    Args:
        access: Who may send.
        rules: How spans of other programs are read, before the built-in rules.
        scrape: What is scraped.
        files: The other files it was read from.
        warnings: What is read otherwise than it may be meant: file, line, what.
    """

    access: Access = field(default_factory=Access)
    rules: tuple[Rule, ...] = ()
    scrape: tuple[Target, ...] = ()
    files: tuple[Path, ...] = ()
    warnings: tuple[str, ...] = ()


def read(path: Path | None, env: Mapping[str, str], held: dict[str, str] | None = None) -> CollectorFile:
    """Read the file at *path*, if there is one.

    Args:
        path: The file.
        env: The environment, for secrets.
        held: The secrets that files held when it was read before, by path; those of now are added.

    Raises:
        ConfigError: Something in it is wrong, a line for each.
    """
    own = access_section.from_env(env)
    found = CollectorFile(Access(tokens=own))
    if path is None:
        return found
    document = read_document(path, "the collector's file")
    if document.value is not None:
        fields = Fields(document, (), document.value, example="access: {tokens: []}")
        access, rules, scrape = (fields.value(key) for key in ("access", "rules", "scrape"))
        fields.finish()
        who = access_section.read(document, ("access",), access or {}, env, {} if held is None else held)
        found = CollectorFile(
            replace(who.access, tokens=(*who.access.tokens, *own)),
            rules_section.read(document, ("rules",), rules or {}),
            scrape_section.read(document, ("scrape",), scrape or {}),
            who.files,
        )
    if document.problems:
        raise FileError(path, document.problems)
    return replace(found, warnings=tuple(spell_problem(path, warning) for warning in document.warnings))


class _File(LiveFile[CollectorFile]):
    """The file, and what the log says of it."""

    def accepted(self, found: CollectorFile) -> None:
        counts = len(found.access.tokens), len(found.rules), len(found.scrape)
        _log.info("%s is in force: %d tokens, %d rules, %d targets", self.path, *counts)
        for line in found.warnings:
            _log.warning("%s", line)


class LiveConfig:
    """The file, read again every few seconds while it is watched; a broken one leaves in force what was read before.

    Args:
        path: The file, or None where there is none.
        env: The environment, for secrets.

    Attributes:
        env: The same.

    Raises:
        ConfigError: Something in it is wrong, a line for each.
    """

    def __init__(self, path: Path | None, env: Mapping[str, str]) -> None:
        held: dict[str, str] = {}
        self.env = env
        self._first = read(path, env, held)
        self._live = _File(path, lambda path: self._again(path, env, held), lambda found: found.files)
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self.refresh()

    @property
    def current(self) -> CollectorFile:
        """What is in force."""
        return self._live.current or self._first

    @property
    def errors(self) -> tuple[str, ...]:
        """What is wrong with the file as it is now; empty when nothing is."""
        return self._live.errors

    def refresh(self) -> None:
        """Read the file if it has changed."""
        self._live.refresh(datetime.now(UTC))

    def start(self) -> None:
        """Watch the file in a thread of its own."""
        self._thread = threading.Thread(target=self._watch, name="stagelens-config", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Watch no more; without `start` it does nothing."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def _again(self, path: Path, env: Mapping[str, str], held: dict[str, str]) -> CollectorFile:
        found = read(path, env, held)
        if self.current.access.asks and not found.access.asks:
            # As half a file does that somebody is writing.
            msg = f"{path}: it would let in everybody, for it names neither tokens nor a client_ca; restart if that is meant"
            raise ConfigError(msg)
        if found.access.tls != self._first.access.tls:
            _log.warning("%s: what access.tls names now is used after a restart", path)
        return replace(found, access=replace(found.access, tls=self._first.access.tls))

    def _watch(self) -> None:
        while not self._stopping.wait(_LOOK_SECONDS):
            try:
                self.refresh()
            except Exception:  # noqa: BLE001 - what was read before stays in force
                _log.exception("the collector's file could not be looked at")
