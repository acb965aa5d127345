"""Service level objectives: the definition of an SLO, and the parser of an entry of `slos` in the SLO file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Literal, cast

from ...core.names import DEFINITIONS
from ...core.settings.yaml_config import Document, Fields, Place, Problem, meant
from ...core.stages import BY_KEY
from ...store import Indicator, Selection
from ...store.selection import Kind
from ..formatting import duration, latency, percent
from .maintenance import MaintenanceCalendar

Watched = Literal["request", "ttft", "tpot", "stage", "coverage", "freshness"]
KINDS: tuple[Kind, ...] = ("latency", "availability", "ttft", "tpot", "stage", "coverage", "freshness")
# Below a week the windows of the policy are as long as the SLO's window; data are retained for at most a quarter.
MIN_WINDOW, MAX_WINDOW = timedelta(days=7), timedelta(days=90)
MAX_NAME_CHARS = 200
_HOUR = timedelta(hours=1)
# Data arrive every ten seconds, and freshness is counted in minutes.
_MIN_AGE, _MAX_AGE = timedelta(minutes=1), timedelta(days=7)
# Example thresholds of the kinds that have a threshold.
THRESHOLDS: Mapping[Kind, str] = {
    "latency": "250ms",
    "ttft": "500ms",
    "tpot": "50ms",
    "stage": "50ms",
    "freshness": "5m",
}


@dataclass(frozen=True, slots=True)
class Slo:
    """Service level objective: in any *window*, at least the share *objective* of requests is good.

    A request is bad if it failed or took longer than *threshold*. `Indicator` defines bad requests for the other kinds.

    Args:
        name: Name, unique in the SLO file; part of the cause of incidents.
        service: The service.
        objective: Required share of good requests. [ratio, 0 < x < 1]
        window: Rolling period.
        threshold: Latency or age above which a request is bad; None for availability and coverage.
        route: Filter by route; None for all routes.
        model: Filter by model; None for all models.
        version: Filter by version; None for all versions.
        environment: Filter by environment; None for all environments.
        description: Description for the person on call.
        runbook: URL of the runbook.
        watched: Subject of the objective; `request` without a threshold means availability.
        stage: Stage of a stage objective.
        definition: Definition of the first token for token objectives; None for all definitions.
        budgets: Stage budgets; their sum is at most the threshold.
        reset: Time before which requests do not count; None for no reset.
        maintenance: Maintenance windows.
    """

    name: str
    service: str
    objective: float
    window: timedelta
    threshold: timedelta | None = None
    route: str | None = None
    model: str | None = None
    version: str | None = None
    environment: str | None = None
    description: str = ""
    runbook: str = ""
    watched: Watched = "request"
    stage: str | None = None
    definition: str | None = None
    budgets: tuple[tuple[str, timedelta], ...] = ()
    reset: datetime | None = None
    maintenance: MaintenanceCalendar = field(default_factory=MaintenanceCalendar)

    @property
    def kind(self) -> Kind:
        """Kind of the objective: `latency` or `availability` for requests, by their threshold, else *watched*."""
        if self.watched == "request":
            return "availability" if self.threshold is None else "latency"
        return self.watched

    @property
    def threshold_seconds(self) -> float | None:
        """Latency threshold of whole requests in seconds; None for other kinds."""
        return self.threshold.total_seconds() if self.kind == "latency" and self.threshold is not None else None

    @property
    def indicator(self) -> Indicator:
        """Indicator that defines which requests the store counts as bad."""
        seconds = None if self.threshold is None else self.threshold.total_seconds()
        return Indicator(self.kind, seconds, self.stage or self.definition)

    @property
    def budget(self) -> float:
        """Error budget: the share of requests that may be bad."""
        return 1 - self.objective

    def select(self, start: datetime, end: datetime) -> Selection:
        """Return the selection of the SLO's requests in `[start, end)`."""
        return Selection(
            start=start,
            end=end,
            service=self.service,
            version=self.version,
            environment=self.environment,
            model=self.model,
            route=self.route,
        )

    def in_words(self) -> str:
        """Return the objective as a sentence.

        >>> Slo("x", "shop", 0.99, timedelta(days=30), timedelta(milliseconds=250)).in_words()
        '99 % of requests to shop succeed within 250 ms, over 30 days'
        """
        share, whose = percent(self.objective), ", ".join([self.service, *self._filters()])
        limit = "" if self.threshold is None else _span(self.threshold)
        said = {
            "latency": f"{share} of requests to {whose} succeed within {limit}",
            "availability": f"{share} of requests to {whose} succeed",
            "ttft": f"{share} of requests to {whose} have their first token within {limit}",
            "tpot": f"{share} of requests to {whose} need at most {limit} a token after the first",
            "stage": f"{share} of requests to {whose} spend at most {limit} in {self.stage}",
            "coverage": f"stages explain {share} of the time of requests to {whose}",
            "freshness": f"{share} of the time, the newest data of {whose} are at most {limit} old",
        }
        return f"{said[self.kind]}, over {duration(self.window)}"

    def _filters(self) -> list[str]:
        values = {
            "route": self.route,
            "model": self.model,
            "version": self.version,
            "environment": self.environment,
            "definition": self.definition,
        }
        return [f"{key} {value}" for key, value in values.items() if value]


def _span(length: timedelta) -> str:
    """Return a threshold as text, in minutes only if the number of minutes is exact."""
    seconds = length.total_seconds()
    return duration(length) if seconds >= 120 and seconds % 60 == 0 else latency(seconds)  # noqa: PLR2004 - two minutes


@dataclass(frozen=True, slots=True)
class SloEntry:
    """Entry of `slos` in the SLO file.

    Args:
        place: Position in the document.
        name: Name of the entry.
        slos: SLOs of the entry, one per threshold.
    """

    place: Place
    name: str
    slos: tuple[Slo, ...]


def read_slo_entry(document: Document, place: Place, item: Any) -> SloEntry | None:
    """Parse one entry of `slos` and add its errors to the document's problems; return None if it is no mapping."""
    fields = Fields(document, place, item)
    if fields.broken:
        return None
    name, service = fields.text("name", example="checkout-latency"), fields.text("service", example="checkout")
    base = read_indicator_fields(fields, document, Slo(name, service, 0.5, _window(fields)))
    base = replace(
        base,
        description=fields.text("description"),
        runbook=fields.address("runbook"),
        reset=fields.moment("reset"),
    )
    slos = _with_budgets(fields, document, _objectives(fields, document, base), base.kind)
    check_names(fields, slos)
    fields.finish()
    return SloEntry(place, name, slos)


def read_indicator_fields(fields: Fields, document: Document, base: Slo) -> Slo:
    """Return *base* with the kind and the filters in *fields*; the threshold is parsed later."""
    kind = _kind(fields)
    return replace(
        base,
        watched="request" if kind in ("latency", "availability") else kind,
        # A placeholder that distinguishes latency from availability until the threshold is parsed.
        threshold=_HOUR if kind in THRESHOLDS else None,
        stage=_stage(fields, kind, document),
        definition=_definition(fields, kind),
        route=fields.optional("route"),
        model=fields.optional("model"),
        version=fields.optional("version"),
        environment=fields.optional("environment"),
    )


def _kind(fields: Fields) -> Kind:
    if fields.has("kind"):
        return cast(Kind, fields.one_of("kind", KINDS) or "latency")
    if fields.has("stage"):
        return "stage"
    return "latency" if fields.has("threshold") or fields.has("thresholds") else "availability"


def _window(fields: Fields) -> timedelta:
    window = fields.duration("window", example="30d") or timedelta(days=30)
    if not MIN_WINDOW <= window <= MAX_WINDOW:
        fields.complain(
            f"{fields.name('window')} is {window.total_seconds() / 86_400:g}d; write a window from "
            f"{MIN_WINDOW.days}d to {MAX_WINDOW.days}d, such as 30d",
            "window",
        )
    return window


def _stage(fields: Fields, kind: Kind, document: Document) -> str | None:
    stage = fields.text("stage", example="queue" if kind == "stage" else "")
    if stage and kind != "stage":
        fields.complain(
            f"{fields.name('stage')} does not go with kind {kind}; write `kind: stage`, or leave it out", "stage"
        )
        return None
    _warn_of_typo(fields, "stage", stage, document)
    return stage or None


def _warn_of_typo(fields: Fields, key: str, stage: str, document: Document) -> None:
    """Add a warning if *stage* at *key* is similar to a known stage; custom stages may have any name."""
    question = meant(stage, BY_KEY)
    if stage and stage not in BY_KEY and question:
        text = f"{fields.name(key)} names {stage!r}, which is none of Stagelens' own{question}"
        document.warnings.append(Problem(fields.line_of(key), text))


def _definition(fields: Fields, kind: Kind) -> str | None:
    if not fields.has("definition"):
        return None
    definition = fields.one_of("definition", tuple(DEFINITIONS))
    if kind not in ("ttft", "tpot"):
        fields.complain(f"{fields.name('definition')} goes with kind ttft and tpot only; leave it out", "definition")
        return None
    return definition or None


def _objectives(fields: Fields, document: Document, base: Slo) -> tuple[Slo, ...]:
    """Return one SLO per threshold: from `threshold` and `objective`, or from the list `thresholds`."""
    if not fields.has("thresholds"):
        return (_objective(fields, base),)
    for key in ("threshold", "objective"):
        if fields.has(key):
            fields.value(key)
            fields.complain(f"{fields.name(key)} is given beside thresholds; write it into each of them", key)
    made: list[Slo] = []
    for place, item in fields.items("thresholds"):
        each = Fields(document, place, item, example="threshold: 250ms")
        if each.broken:
            continue
        slo = _objective(each, base)
        label = each.text("name", default=latency((slo.threshold or _HOUR).total_seconds()))
        each.finish()
        if slo.threshold in [other.threshold for other in made]:
            each.complain(f"{each.name('threshold')} is there twice; one objective for each threshold", "threshold")
            continue
        made.append(replace(slo, name=f"{base.name} ({label})"))
    if not made and isinstance(fields.value("thresholds"), list):
        fields.complain(
            f"{fields.name('thresholds')} is empty; write `- {{objective: 0.99, threshold: 250ms}}`", "thresholds"
        )
    return tuple(made)


def _objective(fields: Fields, base: Slo) -> Slo:
    kind = base.kind
    example = THRESHOLDS.get(kind)
    threshold = fields.duration("threshold", example=example or "", required=example is not None)
    if threshold is not None and example is None:
        fields.complain(f"{fields.name('threshold')} does not go with kind {kind}; leave it out", "threshold")
        threshold = None
    if threshold is not None:
        check_threshold(fields, "threshold", threshold, kind)
    return replace(base, objective=fields.ratio("objective", example=0.99), threshold=threshold)


def check_threshold(fields: Fields, key: str, threshold: timedelta, kind: Kind) -> None:
    """Report a problem if *threshold* at *key* is implausible for *kind*."""
    name = fields.name(key)
    if kind == "freshness" and not _MIN_AGE <= threshold <= _MAX_AGE:
        fields.complain(f"{name} is not from 1m to 7d; write how old data may be, such as 5m", key)
    if kind != "freshness" and threshold > _HOUR:
        fields.complain(f"{name} is over an hour; write the latency of one request", key)


def _with_budgets(fields: Fields, document: Document, slos: tuple[Slo, ...], kind: Kind) -> tuple[Slo, ...]:
    """Return *slos* with their stage budgets, and report budgets that exceed the shortest threshold."""
    written = fields.mapping("budgets", example="queue: 50ms")
    if written is None or written.broken:
        return slos
    if kind != "latency":
        fields.complain(
            f"{fields.name('budgets')} goes with kind latency only: the time of a request is what stages share",
            "budgets",
        )
        return slos
    for stage in written.keys:
        _warn_of_typo(written, stage, stage, document)
    found = [(stage, written.duration(stage, example="50ms")) for stage in written.keys]
    budgets = tuple((stage, length) for stage, length in found if length is not None)
    shortest = min((slo.threshold for slo in slos if slo.threshold is not None), default=None)
    total = sum((length for _, length in budgets), timedelta(0))
    if shortest is not None and total > shortest:
        fields.complain(
            f"{fields.name('budgets')} add up to {latency(total.total_seconds())}, more than the threshold of "
            f"{latency(shortest.total_seconds())}; make them smaller, or the threshold longer",
            "budgets",
        )
    return tuple(replace(slo, budgets=budgets) for slo in slos)


def check_names(fields: Fields, slos: tuple[Slo, ...]) -> None:
    """Report a problem if a name is too long for the cause of an incident."""
    longest = max((len(slo.name) for slo in slos), default=0)
    if longest > MAX_NAME_CHARS:
        fields.complain(f"{fields.name('name')} has {longest} characters; {MAX_NAME_CHARS} are the most", "name")
