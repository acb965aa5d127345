"""Parser of OpenSLO v1 documents. The kinds SLO and SLI are supported; for other kinds a warning names the replacement.

A metric has a source of type `stagelens`, whose `spec` has the keys of an entry of `slos`: kind, stage, definition,
service, route, model, version, environment and, in a ratioMetric, threshold. The threshold of a thresholdMetric is the
`value` of the objective, in seconds.

Source: https://github.com/OpenSLO/OpenSLO, specification of apiVersion openslo/v1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from ...core.settings.field_types import Amount, Ratio, Text, one_of, reject, reject_value
from ...core.settings.section import Fault, Section, read_section
from ...core.settings.yaml_config import Document, Place, Problem, meant, spell
from ..formatting import latency, percent
from .slo import MAX_WINDOW, MIN_WINDOW, THRESHOLDS, IndicatorSection, Slo, SloEntry, name_faults, threshold_faults

SOURCE = "stagelens"
# Placeholder for a threshold defined elsewhere.
_PLACEHOLDER = timedelta(seconds=1)
VERSION = "openslo/v1"
KINDS = ("SLO", "SLI", "Service", "DataSource", "AlertPolicy", "AlertCondition", "AlertNotificationTarget")
_POLICY = "pages and tickets follow Stagelens' own burn-rate policy, which `stagelens check` shows"
# Kinds that are accepted and have no effect.
_UNUSED = {
    "AlertPolicy": _POLICY,
    "AlertCondition": _POLICY,
    "AlertNotificationTarget": "messages go to the `channels` of the SLO file",
}
_MAX_SECONDS = 1e9
_METHODS = ("Occurrences", "Timeslices", "RatioTimeslices")
_DURATION = re.compile(r"(\d{1,9})([mhdwMQY])")
_DAYS = {"m": 1 / 1440, "h": 1 / 24, "d": 1, "w": 7, "M": 30, "Q": 90, "Y": 365}


def _supported(version: str) -> str:
    if version != VERSION:
        reject(f"is {version!r}; write {VERSION}")
    return version


class _Metadata(Section):
    example = "name: checkout"

    name: Text = Field(examples=["checkout-latency"])
    display_name: Any = Field(default=None, alias="displayName")
    labels: Any = None
    annotations: Any = None


class _OpenSlo(Section):
    version: Annotated[Text, AfterValidator(_supported)] = Field(alias="apiVersion", examples=[VERSION])
    kind: Annotated[str, one_of(KINDS)] = Field(examples=["SLO"])
    metadata: _Metadata = Field(examples=["{name: checkout}"])
    spec: dict[str, Any] = Field(examples=["{service: checkout}"])


class _MetricSource(Section):
    example = f"type: {SOURCE}"

    reference: Text = Field(default="", alias="metricSourceRef")
    type: Text = ""
    spec: Any = Field(default={})


class _Metric(Section):
    example = "metricSource: …"

    source: _MetricSource = Field(alias="metricSource", examples=[f"{{type: {SOURCE}}}"])


class _SourceSpec(IndicatorSection):
    service: Text | None = None


class _RatioMetric(Section):
    example = "good: …"

    counter: Any = None
    raw: Any = None
    raw_type: Any = Field(default=None, alias="rawType")
    good: _Metric | None = None
    bad: _Metric | None = None
    total: _Metric | None = None

    def faults(self) -> Iterator[Fault]:
        for key, given in (("raw", self.raw), ("rawType", self.raw_type)):
            if given is not None:
                yield Fault(key, "is not supported; write good and total")
        if self.raw is None and (self.total is None or (self.good is None) == (self.bad is None)):
            yield Fault("good", "(or bad) and total are required; write exactly one of good and bad")


class _Sli(Section):
    example = "ratioMetric: …"

    description: Text = ""
    threshold: _Metric | None = Field(default=None, alias="thresholdMetric")
    ratio: _RatioMetric | None = Field(default=None, alias="ratioMetric")

    def faults(self) -> Iterator[Fault]:
        if self.threshold is None and self.ratio is None:
            yield Fault("ratioMetric", "is missing; add `ratioMetric: …` or `thresholdMetric: …`")


class _InlineSli(Section):
    example = "spec: …"

    metadata: Any = None
    spec: _Sli = Field(examples=["…"])


def _in_limits(text: str) -> str:
    if not MIN_WINDOW <= _length(text) <= MAX_WINDOW:
        reject_value(f"write a window from {MIN_WINDOW.days}d to {MAX_WINDOW.days}d, such as 30d or 4w")
    return text


def _length(text: str) -> timedelta:
    match = _DURATION.fullmatch(text)
    days = int(match[1]) * _DAYS[match[2]] if match else 0
    return timedelta(days=min(days, MAX_WINDOW.days + 1))


class _TimeWindow(Section):
    example = "duration: 30d"

    duration: Annotated[Text, AfterValidator(_in_limits)] = Field(examples=["30d"])
    is_rolling: Any = Field(default=None, alias="isRolling")
    calendar: Any = None

    def faults(self) -> Iterator[Fault]:
        if self.calendar is not None or self.is_rolling is False:
            text = f"is a calendar window; Stagelens uses a rolling window of {self.duration}"
            yield Fault("duration", text, is_warning=True)


class _Objective(Section):
    example = "target: 0.99"

    label: Text = Field(default="", alias="displayName")
    target: Ratio | None = Field(default=None, examples=["0.99"])
    percent: Amount | None = Field(default=None, alias="targetPercent", examples=["99.5"])
    op: Text | None = None
    value: Amount | None = Field(default=None, examples=["0.25"])
    slice_target: Any = Field(default=None, alias="timeSliceTarget")
    slice_window: Any = Field(default=None, alias="timeSliceWindow")

    @property
    def objective(self) -> float:
        return self.target or round((self.percent or 0) / 100, 12)

    def faults(self) -> Iterator[Fault]:
        if self.target is None and self.percent is None:
            yield Fault("target", "is missing; add `target: 0.99`")
        if self.target is not None and self.percent is not None:
            yield Fault("target", "and targetPercent are both set; keep one")
        if self.percent is not None and self.percent >= 100:  # noqa: PLR2004 - percent
            yield Fault("targetPercent", f"is {self.percent:g}; write less than 100, such as 99.5")
        for key, given in (("timeSliceTarget", self.slice_target), ("timeSliceWindow", self.slice_window)):
            if given is not None:
                yield Fault(key, "is not used: Stagelens counts requests, not slices of time", is_warning=True)

    def value_faults(self, indicator: _Indicator) -> Iterator[Fault]:
        if not indicator.by_value:
            if self.op is not None or self.value is not None:
                yield Fault("value", "is valid only with a thresholdMetric; write `threshold` into its spec")
            return
        if self.op is None:
            yield Fault("op", "is missing; add `op: lte`")
        elif self.op not in ("lte", "lt"):
            yield Fault("op", f"is {self.op!r}; write lte, because lower values are better")
        if self.value is None:
            yield Fault("value", "is missing; add `value: 0.25, in seconds`")
        else:
            yield from threshold_faults("value", self.threshold, indicator.base.kind)

    @property
    def threshold(self) -> timedelta:
        """Threshold from `value`; longer ones than a request can take are errors."""
        return timedelta(seconds=min(self.value or 1, _MAX_SECONDS))


class _SloSpec(Section):
    example = "service: checkout"

    description: Text = ""
    service: Text = Field(examples=["checkout"])
    indicator_reference: Text | None = Field(default=None, alias="indicatorRef")
    indicator: _InlineSli | None = None
    time_window: tuple[_TimeWindow, ...] = Field(default=(), alias="timeWindow")
    method: Annotated[str, one_of(_METHODS)] = Field(alias="budgetingMethod", examples=["Occurrences"])
    objectives: tuple[_Objective, ...] = ()
    alert_policies: Any = Field(default=None, alias="alertPolicies")

    @property
    def window(self) -> timedelta:
        return _length(self.time_window[0].duration) if self.time_window else timedelta(days=30)

    def faults(self) -> Iterator[Fault]:
        if self.indicator is None and self.indicator_reference is None:
            yield Fault(
                "indicatorRef",
                "is missing; add `indicatorRef: checkout-latency` with the name of an SLI, or `indicator: …`",
            )
        if not self.objectives:
            yield Fault("objectives", "is empty; write `- target: 0.99`")
        if len(self.time_window) > 1:
            yield Fault("timeWindow", "has more than one window; keep one")
        if self.method != "Occurrences":
            text = f"is {self.method}; Stagelens evaluates it as Occurrences"
            yield Fault("budgetingMethod", text, is_warning=True)
        if self.alert_policies is not None:
            yield Fault("alertPolicies", f"are not used: {_POLICY}", is_warning=True)


@dataclass(frozen=True, slots=True)
class _Found:
    document: Document
    top: _OpenSlo


@dataclass(frozen=True, slots=True)
class _Indicator:
    base: Slo
    by_value: bool


def is_openslo(document: Document) -> bool:
    """Return whether *document* is an OpenSLO document."""
    return isinstance(document.value, dict) and "apiVersion" in document.value


def read_openslo(documents: Sequence[Document]) -> list[tuple[Document, SloEntry]]:
    """Parse all *documents*, which may refer to each other; add errors to their problems and omissions to their warnings."""
    tops = [(document, read_section(_OpenSlo, document, (), document.value)) for document in documents]
    definitions = {(top.kind, top.metadata.name): _Found(document, top) for document, top in tops if top}
    entries: list[tuple[Document, SloEntry]] = []
    for document, top in tops:
        if top and top.kind in _UNUSED:
            text = f"{top.kind} {top.metadata.name!r} is not used: {_UNUSED[top.kind]}"
            document.warnings.append(Problem(document.line(()), text))
        entry = _SloReader(document, definitions).read(top) if top and top.kind == "SLO" else None
        if entry:
            entries.append((document, entry))
    return entries


@dataclass(frozen=True, slots=True)
class _SloReader:
    document: Document
    known: Mapping[tuple[str, str], _Found]

    def read(self, top: _OpenSlo) -> SloEntry | None:
        """Return the entry; None if it is invalid or has an unsupported source."""
        spec, name = read_section(_SloSpec, self.document, ("spec",), top.spec), top.metadata.name
        if spec is None:
            return None
        base = Slo(name, spec.service, 0.5, spec.window, description=spec.description)
        indicator = self._indicator(spec, base)
        if indicator is None:
            return None
        slos: list[Slo] = []
        for position, objective in enumerate(spec.objectives):
            _report(self.document, ("spec", "objectives", position), objective.value_faults(indicator))
            slo = replace(indicator.base, objective=objective.objective)
            slo = replace(slo, threshold=objective.threshold) if indicator.by_value else slo
            by_value = latency(objective.threshold.total_seconds()) if indicator.by_value else percent(slo.objective)
            several = len(spec.objectives) > 1
            slos.append(replace(slo, name=f"{name} ({objective.label or by_value})") if several else slo)
        _report(self.document, ("metadata",), name_faults(slo.name for slo in slos))
        return SloEntry(("metadata",), name, tuple(slos), spec.service)

    def _indicator(self, spec: _SloSpec, base: Slo) -> _Indicator | None:
        if spec.indicator is not None:
            return self._measured(self.document, ("spec", "indicator", "spec"), spec.indicator.spec, base)
        reference = spec.indicator_reference or ""
        definition = self.known.get(("SLI", reference))
        if definition is None:
            fix = meant(reference, [name for kind, name in self.known if kind == "SLI"]) or "; add an SLI of that name"
            text = f"is {reference!r}, which is not an SLI in these files{fix}"
            _report(self.document, ("spec",), [Fault("indicatorRef", text)])
            return None
        sli = read_section(_Sli, definition.document, ("spec",), definition.top.spec)
        return sli and self._measured(definition.document, ("spec",), sli, base)

    def _measured(self, document: Document, location: Place, sli: _Sli, base: Slo) -> _Indicator | None:
        if sli.ratio is None:
            assert sli.threshold is not None  # noqa: S101 - `_Sli.faults`
            at = (*location, "thresholdMetric", "metricSource")
            slo = self._source(document, at, sli.threshold.source, base, "value")
            if slo and slo.kind not in THRESHOLDS:
                text = f"is of kind {slo.kind}, which has no threshold; use a ratioMetric"
                _report(document, at, [Fault("", text)])
                return None
            return slo and _Indicator(slo, by_value=True)
        at, share = (*location, "ratioMetric"), "good" if sli.ratio.good else "bad"
        counted = sli.ratio.good or sli.ratio.bad
        if counted is None or sli.ratio.total is None:
            return None
        slo = self._source(document, (*at, share, "metricSource"), counted.source, base, "share")
        among = slo and self._source(document, (*at, "total", "metricSource"), sli.ratio.total.source, base, "total")
        if slo is None or among is None:
            return None
        if _filters(slo) != _filters(among):
            _report(document, at, [Fault("total", "has other filters than good or bad; use the same filters")])
        return _Indicator(slo, by_value=False)

    def _source(
        self,
        document: Document,
        location: Place,
        source: _MetricSource,
        base: Slo,
        role: Literal["value", "share", "total"],
    ) -> Slo | None:
        """Return *base* with the source at *location*; None if it is invalid or has another type."""
        data_source = self.known.get(("DataSource", source.reference))
        kind = source.type or (str(data_source.top.spec.get("type", "")) if data_source else "")
        if kind.lower() != SOURCE:
            what = f"is of type {kind!r}" if kind else "has no type"
            text = f": it {what}, but only `type: {SOURCE}` is supported; the SLO is skipped"
            document.warnings.append(Problem(document.line((*location, "type")), spell((*location, "type")) + text))
            return None
        spec = read_section(_SourceSpec, document, (*location, "spec"), source.spec)
        if spec is None:
            return None
        _report(document, (*location, "spec"), _threshold_faults(spec, role))
        slo = spec.slo(base.name, spec.service or base.service, base.window)
        # A value is compared with seconds, so without a kind the metric is the request latency.
        is_latency = role == "value" and spec.measured in ("latency", "availability") and spec.kind != "availability"
        return replace(slo, description=base.description, threshold=_PLACEHOLDER if is_latency else slo.threshold)


def _threshold_faults(spec: _SourceSpec, role: str) -> Iterator[Fault]:
    needed = THRESHOLDS.get(spec.measured)
    if role == "value" and spec.threshold is not None:
        yield Fault("threshold", "is not valid with a thresholdMetric; set `value` in the objectives")
    elif role == "share" and needed and spec.threshold is None:
        yield Fault("threshold", f"is missing; add `threshold: {needed}`")
    elif spec.threshold is not None:
        yield from threshold_faults("threshold", spec.threshold, spec.measured)


def _filters(slo: Slo) -> tuple[str | None, ...]:
    return slo.service, slo.route, slo.model, slo.version, slo.environment


def _report(document: Document, location: Place, faults: Iterable[Fault]) -> None:
    for fault in faults:
        at = (*location, *fault.loc)
        document.problems.append(Problem(document.line(at), f"{spell(at)} {fault.text}"))
