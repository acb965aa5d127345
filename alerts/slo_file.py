"""Reading the SLO file: every mistake at once, each with its line, key, value and cure."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from ..core.errors import ConfigError
from . import channels
from .channels import ChannelEntry
from .fields import Fields
from .slo import Slo
from .yaml_lines import Document, Place, Problem, parse, spell

log = logging.getLogger(__name__)

# Below a week the policy's windows are as long as the SLO's own; above a quarter nothing is kept that long.
MIN_WINDOW, MAX_WINDOW = timedelta(days=7), timedelta(days=90)
MAX_NAME_CHARS = 200

EXAMPLE = """\
slos:
  - name: checkout-latency
    service: checkout
    objective: 0.99
    threshold: 250ms
    window: 30d
"""


@dataclass(frozen=True, slots=True)
class Definitions:
    """What an SLO file says.

    Args:
        slos: The promises.
        channels: Where messages go.
        dashboard_url: What links begin with; empty when the file does not say.
    """

    slos: tuple[Slo, ...] = ()
    channels: tuple[ChannelEntry, ...] = ()
    dashboard_url: str = ""

    @property
    def channel_names(self) -> tuple[str, ...]:
        """The names of all channels, usable or not."""
        return tuple(entry.name for entry in self.channels)


class SloFileError(ConfigError):
    """An SLO file is wrong; its text has one line for each problem.

    Args:
        path: The file, as the user named it.
        problems: What is wrong in it, in order of lines.
    """

    def __init__(self, path: Path, problems: list[Problem]) -> None:
        self.problems = tuple(sorted(problems, key=lambda problem: problem.line))
        super().__init__("\n".join(f"{path}:{problem.line}: {problem.text}" for problem in self.problems))


def read(path: Path, env: Mapping[str, str]) -> Definitions:
    """Read the SLO file at *path*; secrets it names are taken from *env*.

    Raises:
        SloFileError: Something in it is wrong.
        ConfigError: It cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        msg = f"{path} cannot be read: {error.strerror}; give the path of an SLO file"
        raise ConfigError(msg) from error
    except UnicodeDecodeError as error:
        msg = f"{path} is not text in UTF-8 (byte {error.start}); save it as UTF-8"
        raise ConfigError(msg) from error
    document = parse(text)
    definitions = _definitions(document, env)
    if document.problems:
        raise SloFileError(path, document.problems)
    return definitions


def _definitions(document: Document, env: Mapping[str, str]) -> Definitions:
    if document.value is None:
        if document.problems:
            return Definitions()
        document.problems.append(Problem(1, f"the file is empty; write, for example:\n{EXAMPLE}"))
        return Definitions()
    top = Fields(document, (), document.value)
    if top.broken:
        return Definitions()
    slos = [(place, _slo(document, place, item)) for place, item in top.items("slos")]
    if not slos and not isinstance(document.value.get("slos"), str | int | dict):
        top.complain("slos is empty; write at least one, such as `- name: checkout-latency`", "slos")
    entries = [(place, channels.read(document, place, item, env)) for place, item in top.items("channels")]
    dashboard_url = top.address("dashboard_url").rstrip("/")
    top.finish()
    _unique(document, [(place, slo.name) for place, slo in slos if slo], "name: …-2")
    _unique(document, [(place, entry.name) for place, entry in entries if entry], "name: …-2")
    return Definitions(
        slos=tuple(slo for _, slo in slos if slo),
        channels=tuple(entry for _, entry in entries if entry),
        dashboard_url=dashboard_url,
    )


def _slo(document: Document, place: Place, item: Any) -> Slo | None:
    fields = Fields(document, place, item)
    if fields.broken:
        return None
    slo = Slo(
        name=fields.text("name", example="checkout-latency"),
        service=fields.text("service", example="checkout"),
        objective=fields.ratio("objective", example=0.99),
        window=fields.duration("window", example="30d") or timedelta(days=30),
        threshold=fields.duration("threshold", example="250ms", required=False),
        route=fields.optional("route"),
        model=fields.optional("model"),
        version=fields.optional("version"),
        environment=fields.optional("environment"),
        description=fields.text("description"),
        runbook=fields.address("runbook"),
    )
    _check(fields, slo)
    fields.finish()
    return slo


def _check(fields: Fields, slo: Slo) -> None:
    if not MIN_WINDOW <= slo.window <= MAX_WINDOW:
        fields.complain(
            f"{fields.name('window')} is {slo.window.total_seconds() / 86_400:g}d; write a window from "
            f"{MIN_WINDOW.days}d to {MAX_WINDOW.days}d, such as 30d",
            "window",
        )
    if slo.threshold is not None and slo.threshold > timedelta(hours=1):
        fields.complain(f"{fields.name('threshold')} is over an hour; write the latency of one request", "threshold")
    if len(slo.name) > MAX_NAME_CHARS:
        fields.complain(f"{fields.name('name')} has {len(slo.name)} characters; {MAX_NAME_CHARS} are the most", "name")


def _unique(document: Document, named: list[tuple[Place, str]], cure: str) -> None:
    seen: dict[str, Place] = {}
    for place, name in named:
        if not name:
            continue
        if name in seen:
            line = document.line((*place, "name"))
            text = f"{spell(place)} is called {name!r} like {spell(seen[name])}; give it a name of its own, such as `{cure}`"
            document.problems.append(Problem(line, text.replace("…", name)))
        seen.setdefault(name, place)


@dataclass(slots=True)
class LiveFile:
    """An SLO file that is read again when it changes; a broken one leaves in force what was read before.

    Args:
        path: The file, or None when there is none.
        env: Where secrets are.
        current: What is in force; None until the file was read once without mistakes.
        errors: What is wrong with the file as it is now; empty when nothing is.
        changed_at: When what is in force was read.
    """

    path: Path | None
    env: Mapping[str, str] = field(repr=False)
    current: Definitions | None = None
    errors: tuple[str, ...] = ()
    changed_at: datetime | None = None
    _stamp: tuple[int, int, int] | None = None
    _tried: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def refresh(self, now: datetime) -> None:
        """Read the file if it changed since the last time; thread-safe."""
        if self.path is None:
            return
        with self._lock:
            stamp = _stamp(self.path)
            if not self._tried or stamp != self._stamp:
                self._stamp, self._tried = stamp, True
                self._read(self.path, now)

    def _read(self, path: Path, now: datetime) -> None:
        try:
            found = read(path, self.env)
        except ConfigError as error:
            self.errors = tuple(str(error).splitlines())
            self._report()
            return
        self.current, self.errors, self.changed_at = found, (), now
        log.info("alerts: %s has %d SLOs and %d channels", path, len(found.slos), len(found.channels))

    def _report(self) -> None:
        for line in self.errors:
            log.error("alerts: %s", line)
        if self.current is None:
            log.error("alerts: nothing is watched until the SLO file is mended; it is read again when it changes")
        else:
            log.error("alerts: the SLOs read before stay in force until the file is mended")


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
