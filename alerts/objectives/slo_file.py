"""Parser of the SLO file, which reports all errors together, each with line, key, value and fix.

The file defines SLOs, channels, maintenance windows and regression settings. It may contain OpenSLO v1 documents, or include
files with such documents.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from ...core.errors import ConfigError
from ...core.settings.field_types import Text, Texts, WebAddress, reject_value
from ...core.settings.live_file import FileError, LiveFile, read_documents, spell_problem
from ...core.settings.section import Section, read_section
from ...core.settings.yaml_config import Document, Place, Problem, spell
from ..delivery import channels
from ..delivery.channels import ChannelEntry
from . import openslo
from .maintenance import MaintenanceEntry, calendar_of, read_maintenance
from .slo import Slo, SloEntry, SloSection

log = logging.getLogger(__name__)
EXAMPLE = """\
slos:
  - name: checkout-latency
    service: checkout
    objective: 0.99
    threshold: 250ms
    window: 30d
"""
# Smallest SLO file.
EXAMPLE_SLO = "slos: [{name: checkout-latency, service: checkout, objective: 0.99, threshold: 250ms, window: 30d}]"


class RegressionSettings(Section):
    example = "ignore: [checkout]"

    ignore: Texts = Field(examples=["[checkout]"])


@dataclass(frozen=True, slots=True)
class WatchedServices:
    """Services that the regression search includes."""

    ignored: frozenset[str] = frozenset()
    only: frozenset[str] | None = None

    def watches(self, service: str) -> bool:
        return service not in self.ignored and (self.only is None or service in self.only)


ALL_SERVICES = WatchedServices()


def _regressions(value: object) -> object:
    # YAML reads on and off as booleans.
    if isinstance(value, bool):
        return RegressionSettings(ignore=()) if value else None
    if not isinstance(value, dict | RegressionSettings):
        reject_value("write on, off, or `ignore: [checkout]` below it")
    return value


class _SloFile(Section):
    example = "name: checkout-latency"

    include: Texts = ()
    slos: tuple[Any, ...] = ()
    channels: tuple[Any, ...] = ()
    maintenance: tuple[Any, ...] = ()
    dashboard_url: WebAddress = ""
    regressions: Annotated[RegressionSettings | None, BeforeValidator(_regressions)] = None
    labels: dict[Text, dict[Text, Text]] = Field(default_factory=dict, examples=["checkout: {team: payments}"])


@dataclass(frozen=True, slots=True)
class Definitions:
    slos: tuple[Slo, ...] = ()
    channels: tuple[ChannelEntry, ...] = ()
    dashboard_url: str = ""
    warnings: tuple[str, ...] = ()
    included: tuple[Path, ...] = ()
    regressions: WatchedServices | None = ALL_SERVICES
    labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])

    @property
    def channel_names(self) -> tuple[str, ...]:
        return tuple(entry.name for entry in self.channels if entry.takes_messages)


class SloFileError(FileError):
    """An SLO file is invalid; the error text has one line per problem."""


@dataclass(frozen=True, slots=True)
class _NamedEntry:
    document: Document
    place: Place
    name: str

    @property
    def where(self) -> str:
        return spell(self.place) if self.place[0] != "metadata" else f"the SLO of line {self.document.line(())}"


def read_slo_file(path: Path, env: Mapping[str, str], held: dict[str, str] | None = None) -> Definitions:
    documents = read_documents(path, "an SLO file")
    foreign = [document for document in documents if openslo.is_openslo(document)]
    native = [
        document
        for document in documents
        if not openslo.is_openslo(document) and (document.value is not None or document.problems)
    ]
    if not native and not foreign:
        documents[0].problems.append(Problem(1, f"the file is empty; write, for example:\n{EXAMPLE}"))
    for second in native[1:]:
        second.problems.append(
            Problem(second.line(()), "slos and channels are in two YAML documents; write them in one")
        )
    included = _included(native[0], path) if native else {}
    foreign += [
        document
        for included_documents in included.values()
        for document in included_documents
        if openslo.is_openslo(document)
    ]
    entries = openslo.read_openslo(foreign)
    definitions = _definitions(native[0] if native else Document(None), entries, env, {} if held is None else held)
    files = [(None, documents), *included.items()]
    problems, warnings = (_sorted_problems(files, what) for what in ("problems", "warnings"))
    if problems:
        raise SloFileError(path, problems)
    secrets = [file for entry in definitions.channels for file in entry.secret_files]
    shown = tuple(spell_problem(path, warning) for warning in warnings)
    return replace(definitions, warnings=shown, included=(*included, *secrets))


def _sorted_problems(files: Iterable[tuple[Path | None, Sequence[Document]]], what: str) -> list[Problem]:
    problems = (
        replace(problem, path=file)
        for file, documents in files
        for document in documents
        for problem in getattr(document, what)
    )
    return sorted(problems, key=lambda problem: (str(problem.path or ""), problem.line))


def _included(main_document: Document, path: Path) -> dict[Path, list[Document]]:
    read: dict[Path, list[Document]] = {}
    for name in _items(main_document, "include"):
        try:
            included_documents = read_documents(path.parent / str(name), "a file of OpenSLO documents")
        except ConfigError as error:
            main_document.problems.append(Problem(main_document.line(("include",)), f"include: {error}"))
            continue
        for included_document in included_documents:
            if not openslo.is_openslo(included_document) and not included_document.problems:
                text = f"this is not an OpenSLO document; write `apiVersion: {openslo.VERSION}`, or keep slos in {path.name}"
                included_document.problems.append(Problem(included_document.line(()), text))
        read[path.parent / str(name)] = included_documents
    return read


def _items(document: Document, key: str) -> list[Any]:
    value = document.value.get(key) if isinstance(document.value, dict) else None
    return value if isinstance(value, list) else [value] if isinstance(value, str) else []


def _definitions(
    main_document: Document,
    openslo_entries: Sequence[tuple[Document, SloEntry]],
    env: Mapping[str, str],
    held: dict[str, str],
) -> Definitions:
    top = read_section(_SloFile, main_document, (), main_document.value) if main_document.value is not None else None
    written = [
        (main_document, _slo_entry(main_document, ("slos", position), item))
        for position, item in enumerate(_items(main_document, "slos"))
    ]
    if top and not written and not openslo_entries:
        main_document.problems.append(
            Problem(1, "slos is empty; write at least one, such as `- name: checkout-latency`")
        )
    slos = [*written, *openslo_entries]
    channel_places = [("channels", position) for position in range(len(_items(main_document, "channels")))]
    entries = [
        channels.read_channel(main_document, location, item, env, held)
        for location, item in zip(channel_places, _items(main_document, "channels"), strict=True)
    ]
    planned = _maintenance_entries(main_document, [entry for _, entry in slos])
    named = [_NamedEntry(document, entry.place, name) for document, entry in slos for name in entry.names]
    _check_unique_names(named)
    _check_unique_names(
        [
            _NamedEntry(main_document, location, entry.name)
            for location, entry in zip(channel_places, entries, strict=True)
            if entry
        ]
    )
    watched = tuple(
        replace(slo, maintenance=calendar_of(planned, slo.service, entry.name))
        for _, entry in slos
        for slo in entry.slos
    )
    return Definitions(
        slos=watched,
        channels=tuple(entry for entry in entries if entry),
        dashboard_url=top.dashboard_url.rstrip("/") if top else "",
        regressions=_watched_services(top, watched),
        labels=top.labels if top else {},
    )


def _watched_services(top: _SloFile | None, slos: Sequence[Slo]) -> WatchedServices | None:
    if top is None or "regressions" not in top.model_fields_set:
        return WatchedServices(only=frozenset(slo.service for slo in slos))
    return None if top.regressions is None else WatchedServices(ignored=frozenset(top.regressions.ignore))


def _slo_entry(document: Document, location: Place, item: Any) -> SloEntry:
    slo_section = read_section(SloSection, document, location, item)
    keys: dict[Any, Any] = item if isinstance(item, dict) else {}
    return SloEntry(
        location, str(keys.get("name", "")), slo_section.slos() if slo_section else (), str(keys.get("service", ""))
    )


def _maintenance_entries(main_document: Document, entries: Sequence[SloEntry]) -> list[MaintenanceEntry]:
    services = {service for entry in entries for service in (*(slo.service for slo in entry.slos), entry.service)}
    names = {entry.name for entry in entries}
    entries_or_none = [
        read_maintenance(main_document, ("maintenance", position), item, services - {""}, names)
        for position, item in enumerate(_items(main_document, "maintenance"))
    ]
    return [entry for entry in entries_or_none if entry is not None]


def _check_unique_names(named: Iterable[_NamedEntry]) -> None:
    seen: dict[str, _NamedEntry] = {}
    for entry in named:
        first = seen.setdefault(entry.name, entry)
        if first is entry or not entry.name:
            continue
        text = f"{entry.where} has the same name {entry.name!r} as {first.where}; use a unique name, such as `name: {entry.name}-2`"
        entry.document.problems.append(Problem(entry.document.line((*entry.place, "name")), text))


class LiveSloFile(LiveFile[Definitions]):
    """SLO file that is reloaded when the file or a secret changes; the last valid version stays in force."""

    def __init__(self, path: Path | None, env: Mapping[str, str]) -> None:
        held: dict[str, str] = {}
        super().__init__(path, lambda path: read_slo_file(path, env, held), lambda definitions: definitions.included)

    def accepted(self, content: Definitions) -> None:
        log.info("alerts: %s has %d SLOs and %d channels", self.path, len(content.slos), len(content.channels))
        for line in content.warnings:
            log.warning("alerts: %s", line)

    def refused(self) -> None:
        for line in self.errors:
            log.error("alerts: %s", line)
        if self.current is None:
            log.error("alerts: no SLO is evaluated until the SLO file is fixed; it is read again when it changes")
        else:
            log.error("alerts: the previous SLOs stay in force until the SLO file is fixed")


def why_unwatched(file: LiveSloFile | None, *, example: str = EXAMPLE_SLO) -> tuple[str, str]:
    """Return the reason why *file* has no SLO in force, and the fix; two empty texts if an SLO is in force.

    >>> why_unwatched(None, example="slos: …")
    ('there is no slo.yaml', 'Write one where Stagelens starts, such as `slos: …`, and restart it')
    """
    such = f", such as `{example}`," if example else ""
    if file is None or file.path is None:
        return "there is no slo.yaml", f"Write one where Stagelens starts{such} and restart it"
    if file.current is not None and file.current.slos:
        return "", ""
    if file.errors:
        return (
            f"{file.path} cannot be read",
            f"`stagelens check {file.path}` shows the errors; the file is read again when it changes",
        )
    return f"{file.path} has no SLO", f"Add one{such}; the file is read again when it changes"


def unwatched_line(file: LiveSloFile | None) -> str:
    """Return reason and fix of `why_unwatched` as one line for a terminal; empty if an SLO is in force."""
    why, fix = why_unwatched(file)
    return f"no SLO is evaluated: {why}. {fix}" if why else ""
