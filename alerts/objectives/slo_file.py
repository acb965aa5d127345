"""Reading the SLO file: every mistake at once, each with its line, key, value and cure.

The file has promises, channels and planned work; it may hold OpenSLO v1 documents beside them or alone, or include files
of such.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ...core.errors import ConfigError
from ...core.settings import live_file
from ...core.settings.live_file import FileError, read_documents, spell_problem
from ...core.settings.yaml_document import Document, Place, Problem, spell
from ...core.settings.yaml_fields import Fields
from ..delivery import channels
from ..delivery.channels import ChannelEntry
from . import maintenance_file, openslo, regressions, slo_fields
from .maintenance_file import Planned
from .regressions import Regressions
from .slo import Slo
from .slo_fields import Entry

log = logging.getLogger(__name__)

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
        warnings: What is read otherwise than it may be meant, or not at all: file, line, what.
        included: The other files it was read from, those with secrets among them.
        regressions: Whose latency is watched for regressions.
    """

    slos: tuple[Slo, ...] = ()
    channels: tuple[ChannelEntry, ...] = ()
    dashboard_url: str = ""
    warnings: tuple[str, ...] = ()
    included: tuple[Path, ...] = ()
    regressions: Regressions = field(default_factory=Regressions)

    @property
    def channel_names(self) -> tuple[str, ...]:
        """The names of all channels that are told of incidents, usable or not."""
        return tuple(entry.name for entry in self.channels if entry.takes_messages)


class SloFileError(FileError):
    """An SLO file is wrong; its text has one line for each problem."""


@dataclass(frozen=True, slots=True)
class _Named:
    """Something with a name that must be its own.

    Args:
        document: Where it is written.
        place: Where in it.
        name: The name.
    """

    document: Document
    place: Place
    name: str

    @property
    def where(self) -> str:
        """What to call it in a message."""
        return spell(self.place) if self.place[0] != "metadata" else f"the SLO of line {self.document.line(())}"


def read(path: Path, env: Mapping[str, str], held: dict[str, str] | None = None) -> Definitions:
    """Read the SLO file at *path*; secrets it names are taken from *env*, and from files.

    Args:
        path: The file.
        env: The environment.
        held: The secrets that files held when it was read before, by path; those of now are added.

    Raises:
        SloFileError: Something in it is wrong.
        ConfigError: It cannot be read.
    """
    documents = read_documents(path, "an SLO file")
    foreign = [each for each in documents if openslo.is_openslo(each)]
    own = [each for each in documents if not openslo.is_openslo(each) and (each.value is not None or each.problems)]
    if not own and not foreign:
        documents[0].problems.append(Problem(1, f"the file is empty; write, for example:\n{EXAMPLE}"))
    for second in own[1:]:
        second.problems.append(Problem(second.line(()), "slos and channels are in two documents; write them into one"))
    top = Fields(own[0], (), own[0].value) if own and own[0].value is not None else None
    included = _included(top, path) if top else {}
    foreign += [each for found in included.values() for each in found if openslo.is_openslo(each)]
    promised = openslo.read(foreign)
    definitions = _definitions(top, own[0], promised, env, {} if held is None else held) if top else _plain(promised)
    files = [(None, documents), *included.items()]
    problems, warnings = (_placed(files, what) for what in ("problems", "warnings"))
    if problems:
        raise SloFileError(path, problems)
    told = tuple(spell_problem(path, each) for each in warnings)
    secrets = [file for entry in definitions.channels for file in entry.secret_files]
    return replace(definitions, warnings=told, included=(*included, *secrets))


def _placed(files: Iterable[tuple[Path | None, Sequence[Document]]], what: str) -> list[Problem]:
    """Return the problems or the warnings of all documents, each with the file it is in."""
    found = (
        replace(each, path=file)
        for file, documents in files
        for document in documents
        for each in getattr(document, what)
    )
    return sorted(found, key=lambda each: (str(each.path or ""), each.line))


def _included(top: Fields, path: Path) -> dict[Path, list[Document]]:
    """Return the documents of each file that the file includes; all of them must be of OpenSLO."""
    read: dict[Path, list[Document]] = {}
    for name in top.texts("include"):
        try:
            found = read_documents(path.parent / name, "a file of OpenSLO documents")
        except ConfigError as error:
            top.complain(f"include: {error}", "include")
            continue
        for each in found:
            if not openslo.is_openslo(each) and not each.problems:
                text = (
                    f"this is no OpenSLO document; write `apiVersion: {openslo.VERSION}`, or keep slos in {path.name}"
                )
                each.problems.append(Problem(each.line(()), text))
        read[path.parent / name] = found
    return read


def _plain(promised: Sequence[tuple[Document, Entry]]) -> Definitions:
    """Return what OpenSLO documents say by themselves."""
    _unique([_Named(document, entry.place, slo.name) for document, entry in promised for slo in entry.slos])
    return Definitions(tuple(slo for _, entry in promised for slo in entry.slos))


def _definitions(
    top: Fields,
    own: Document,
    promised: Sequence[tuple[Document, Entry]],
    env: Mapping[str, str],
    held: dict[str, str],
) -> Definitions:
    """Read the file's own document, with what OpenSLO documents have *promised*."""
    if top.broken:
        return Definitions()
    written = [(own, slo_fields.read(own, place, item)) for place, item in top.items("slos")]
    slos = [(document, entry) for document, entry in (*written, *promised) if entry is not None]
    if not written and not promised and not isinstance(own.value.get("slos"), str | int | dict):
        top.complain("slos is empty; write at least one, such as `- name: checkout-latency`", "slos")
    entries = [(place, channels.read(own, place, item, env, held)) for place, item in top.items("channels")]
    planned = _planned(top, own, [entry for _, entry in slos])
    dashboard_url = top.address("dashboard_url").rstrip("/")
    watched = regressions.read(top)
    top.finish()
    _unique([_Named(document, entry.place, slo.name) for document, entry in slos for slo in entry.slos])
    _unique([_Named(own, place, entry.name) for place, entry in entries if entry])
    return Definitions(
        slos=tuple(_with_calendar(slo, entry.name, planned) for _, entry in slos for slo in entry.slos),
        channels=tuple(entry for _, entry in entries if entry),
        dashboard_url=dashboard_url,
        regressions=watched,
    )


def _planned(top: Fields, own: Document, entries: Sequence[Entry]) -> list[Planned]:
    """Read the planned work, which may be of one service or promise only."""
    services = {slo.service for entry in entries for slo in entry.slos}
    names = {entry.name for entry in entries}
    found = [maintenance_file.read(own, place, item, services, names) for place, item in top.items("maintenance")]
    return [each for each in found if each is not None]


def _with_calendar(slo: Slo, name: str, planned: Sequence[Planned]) -> Slo:
    return replace(slo, maintenance=maintenance_file.calendar_of(planned, slo.service, name))


def _unique(named: Iterable[_Named]) -> None:
    seen: dict[str, _Named] = {}
    for each in named:
        first = seen.setdefault(each.name, each)
        if first is each or not each.name:
            continue
        text = f"{each.where} is called {each.name!r} like {first.where}; give it a name of its own, such as `name: {each.name}-2`"
        each.document.problems.append(Problem(each.document.line((*each.place, "name")), text))


class LiveFile(live_file.LiveFile[Definitions]):
    """An SLO file that is read again when it changes, or a secret does; a broken one leaves in force what was read before.

    Args:
        path: The file, or None when there is none.
        env: Where secrets are that are not in files.
    """

    def __init__(self, path: Path | None, env: Mapping[str, str]) -> None:
        held: dict[str, str] = {}
        super().__init__(path, lambda path: read(path, env, held), lambda found: found.included)

    def accepted(self, found: Definitions) -> None:
        """Say in the log how much is watched now."""
        log.info("alerts: %s has %d SLOs and %d channels", self.path, len(found.slos), len(found.channels))
        for line in found.warnings:
            log.warning("alerts: %s", line)

    def refused(self) -> None:
        """Say in the log what is wrong, and what is watched meanwhile."""
        for line in self.errors:
            log.error("alerts: %s", line)
        if self.current is None:
            log.error("alerts: nothing is watched until the SLO file is mended; it is read again when it changes")
        else:
            log.error("alerts: the SLOs read before stay in force until the file is mended")
