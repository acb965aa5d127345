"""Parser of OpenSLO v1 documents. The kinds SLO and SLI are supported; for other kinds a warning names the replacement.

A metric has a source of type `stagelens`, whose `spec` has the keys of an entry of `slos`: kind, stage, definition,
service, route, model, version, environment and, in a ratioMetric, threshold. The threshold of a thresholdMetric is the
`value` of the objective, in seconds.

Source: https://github.com/OpenSLO/OpenSLO, specification of apiVersion openslo/v1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Literal

from ...core.settings.yaml_config import Document, Fields, Place, Problem, meant
from ..formatting import latency, percent
from .slo import MAX_WINDOW, MIN_WINDOW, THRESHOLDS, Slo, SloEntry, check_names, check_threshold, read_indicator_fields

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


@dataclass(frozen=True, slots=True)
class OpenSloObject:
    """One OpenSLO document.

    Args:
        document: The document.
        kind: Kind of the document, such as `SLO`.
        name: Name in the metadata.
        spec: Fields of `spec`.
    """

    document: Document
    kind: str
    name: str
    spec: Fields


# Objects by kind and name.
KnownObjects = Mapping[tuple[str, str], OpenSloObject]


@dataclass(frozen=True, slots=True)
class OpenSloIndicator:
    """Indicator of an OpenSLO SLO.

    Args:
        base: The SLO without objective and, if *by_value* is true, without threshold.
        by_value: Whether each objective has its own threshold.
    """

    base: Slo
    by_value: bool


def read_indicator(slo: OpenSloObject, base: Slo, known: KnownObjects) -> OpenSloIndicator | None:
    """Parse the indicator of *slo*, which is inline or in an SLI document.

    Returns:
        The indicator; None if it is invalid or has an unsupported source, which adds a problem or a warning to the document.
    """
    reference, inline = slo.spec.text("indicatorRef"), slo.spec.mapping("indicator", example="spec: …")
    if inline is not None:
        inline.value("metadata")
        spec = inline.mapping("spec", example="ratioMetric: …")
        inline.finish()
        if spec is None:
            inline.missing("spec", "…")
            return None
        return _IndicatorReader(slo.document, base, known).metric(spec)
    if not reference:
        slo.spec.missing("indicatorRef", "checkout-latency` with the name of an SLI, or `indicator")
        return None
    found = known.get(("SLI", reference))
    if found is None:
        fix = meant(reference, [name for kind, name in known if kind == "SLI"]) or "; add an SLI of that name"
        slo.spec.complain(f"spec.indicatorRef is {reference!r}, which is no SLI of these files{fix}", "indicatorRef")
        return None
    spec = Fields(found.document, ("spec",), found.document.value["spec"])
    return _IndicatorReader(found.document, base, known).metric(spec)


@dataclass(frozen=True, slots=True)
class _IndicatorReader:
    """Parser of one indicator of *document* for the SLO *base*."""

    document: Document
    base: Slo
    known: KnownObjects

    def metric(self, spec: Fields) -> OpenSloIndicator | None:
        """Parse the `spec` of an SLI."""
        spec.text("description")
        by_value = spec.mapping("thresholdMetric", example="metricSource: …")
        ratio = spec.mapping("ratioMetric", example="good: …")
        spec.finish()
        if ratio is not None:
            return self._ratio(ratio)
        if by_value is None:
            spec.missing("ratioMetric", "…` or `thresholdMetric: …")
            return None
        slo = self._source(by_value, "value")
        if slo is not None and slo.kind not in THRESHOLDS:
            by_value.complain(
                f"{by_value.name('metricSource')} is of kind {slo.kind}, which has no value; use a ratioMetric"
            )
            return None
        return None if slo is None else OpenSloIndicator(slo, by_value=True)

    def _ratio(self, ratio: Fields) -> OpenSloIndicator | None:
        ratio.value("counter")
        for key in ("raw", "rawType"):
            if ratio.has(key):
                ratio.value(key)
                ratio.complain(f"{ratio.name(key)} is not supported; write good and total", key)
        good, bad = (ratio.mapping(key, example="metricSource: …") for key in ("good", "bad"))
        total = ratio.mapping("total", example="metricSource: …")
        ratio.finish()
        share = good or bad
        if share is None or total is None or (good and bad):
            if not ratio.has("raw"):
                ratio.complain(f"{ratio.name('good')} (or bad, one of them) and total must be given")
            return None
        slo = self._source(share, "share")
        among = slo and self._source(total, "total")
        if slo is None or among is None:
            return None
        if _filters(slo) != _filters(among):
            ratio.complain(f"{ratio.name('total')} has other filters; use the same filters", "total")
        return OpenSloIndicator(slo, by_value=False)

    def _source(self, metric: Fields, role: Literal["value", "share", "total"]) -> Slo | None:
        """Return the base SLO with the source of *metric*; None if the source is missing or has another type."""
        source = metric.mapping("metricSource", example=f"type: {SOURCE}")
        metric.finish()
        if source is None or source.broken:
            metric.missing("metricSource", f"{{type: {SOURCE}}}")
            return None
        kind = self._type(source)
        spec = source.mapping("spec", example="kind: latency") or Fields(self.document, (), {})
        if kind.lower() != SOURCE:
            what = f"is of type {kind!r}" if kind else "has no type"
            text = f"{source.name('type')}: it {what}, and only `type: {SOURCE}` is watched; the SLO is left out"
            self.document.warnings.append(Problem(source.line_of("type"), text))
            return None
        source.finish()
        base = replace(self.base, service=spec.text("service", default=self.base.service))
        slo = read_indicator_fields(spec, self.document, base)
        slo = self._with_threshold(spec, slo, role)
        spec.finish()
        return slo

    def _type(self, source: Fields) -> str:
        reference, kind = source.text("metricSourceRef"), source.text("type")
        found = self.known.get(("DataSource", reference))
        return kind or ("" if found is None else found.spec.text("type"))

    def _with_threshold(self, spec: Fields, slo: Slo, role: str) -> Slo:
        if role == "value":
            # A value is compared with seconds, so without a kind the metric is the request latency.
            return slo if spec.has("kind") or spec.has("stage") else replace(slo, threshold=_PLACEHOLDER)
        needed = THRESHOLDS.get(slo.kind) if role == "share" else None
        threshold = spec.duration("threshold", example=needed or "250ms", required=needed is not None)
        if threshold is not None:
            check_threshold(spec, "threshold", threshold, slo.kind)
        return replace(slo, threshold=threshold)


def _filters(slo: Slo) -> tuple[str | None, ...]:
    return slo.service, slo.route, slo.model, slo.version, slo.environment


def is_openslo(document: Document) -> bool:
    """Return whether *document* is an OpenSLO document."""
    return isinstance(document.value, dict) and "apiVersion" in document.value


def read_openslo(documents: Sequence[Document]) -> list[tuple[Document, SloEntry]]:
    """Parse all *documents*, which may refer to each other; add errors to their problems and omissions to their warnings."""
    objects = [found for found in (_object(each) for each in documents) if found is not None]
    known = {(each.kind, each.name): each for each in objects}
    for each in objects:
        if each.kind in _UNUSED:
            _warn(each.document, (), f"{each.kind} {each.name!r} is not used: {_UNUSED[each.kind]}")
    made = [(each.document, _slo(each, known)) for each in objects if each.kind == "SLO"]
    return [(document, entry) for document, entry in made if entry is not None]


def _object(document: Document) -> OpenSloObject | None:
    top = Fields(document, (), document.value)
    version = top.text("apiVersion", example=VERSION)
    if version and version != VERSION:
        top.complain(f"apiVersion is {version!r}; only {VERSION} is read", "apiVersion")
        return None
    kind = top.one_of("kind", KINDS)
    metadata, spec = top.mapping("metadata", example="name: checkout"), top.mapping("spec", example="service: checkout")
    top.finish()
    if metadata is None or spec is None:
        top.missing("metadata" if metadata is None else "spec", "…")
        return None
    name = metadata.text("name", example="checkout-latency")
    for key in ("displayName", "labels", "annotations"):
        metadata.value(key)
    metadata.finish()
    return OpenSloObject(document, kind, name, spec) if kind and not spec.broken else None


def _slo(found: OpenSloObject, known: KnownObjects) -> SloEntry | None:
    spec, document = found.spec, found.document
    description, service = spec.text("description"), spec.text("service", example="checkout")
    base = Slo(found.name, service, 0.5, _window(spec, document), description=description)
    indicator = read_indicator(found, base, known)
    method = spec.one_of("budgetingMethod", _METHODS)
    if method and method != "Occurrences":
        _warn(
            document,
            ("spec", "budgetingMethod"),
            f"spec.budgetingMethod is {method}; Stagelens counts requests, as Occurrences does",
        )
    if spec.has("alertPolicies"):
        spec.value("alertPolicies")
        _warn(document, ("spec", "alertPolicies"), f"spec.alertPolicies are not used: {_POLICY}")
    objectives = spec.items("objectives")
    if not objectives:
        spec.complain(
            "spec.objectives is empty; write `- target: 0.99`", "objectives" if spec.has("objectives") else ""
        )
    spec.finish()
    if indicator is None:
        return None
    return SloEntry(("metadata",), found.name, _objectives(objectives, found, indicator))


def _window(spec: Fields, document: Document) -> timedelta:
    month = timedelta(days=30)
    items = spec.items("timeWindow")
    if len(items) > 1:
        spec.complain("spec.timeWindow has more than one window; keep one", "timeWindow")
    if not items:
        return month
    fields = Fields(document, *items[0], example="duration: 30d")
    text = fields.text("duration", example="30d")
    rolling = fields.value("isRolling")
    if fields.value("calendar") is not None or rolling is False:
        text_of = f"{fields.name('duration')} is of a calendar; Stagelens counts the last {text}, rolling"
        _warn(document, items[0][0], text_of)
    fields.finish()
    match = _DURATION.fullmatch(text)
    days = int(match[1]) * _DAYS[match[2]] if match else 0
    window = timedelta(days=days) if days <= MAX_WINDOW.days else None
    if window is None or not MIN_WINDOW <= window <= MAX_WINDOW:
        fix = f"write a window from {MIN_WINDOW.days}d to {MAX_WINDOW.days}d, such as 30d or 4w"
        fields.complain(f"{fields.name('duration')} is {text!r}; {fix}", "duration")
    return window or month


def _objectives(
    items: Iterable[tuple[Place, Any]], found: OpenSloObject, indicator: OpenSloIndicator
) -> tuple[Slo, ...]:
    read = [_objective(Fields(found.document, *item, example="target: 0.99"), found, indicator) for item in items]
    made = [(slo, label) for slo, label in read if slo is not None]
    if len(made) == 1:
        return (made[0][0],)
    slos = tuple(replace(slo, name=f"{slo.name} ({label})") for slo, label in made)
    check_names(found.spec, slos)
    return slos


def _objective(fields: Fields, found: OpenSloObject, indicator: OpenSloIndicator) -> tuple[Slo | None, str]:
    label = fields.text("displayName")
    target = _target(fields)
    for key in ("timeSliceTarget", "timeSliceWindow"):
        if fields.has(key):
            fields.value(key)
            text = f"{fields.name(key)} is not used: Stagelens counts requests, not slices of time"
            found.document.warnings.append(Problem(fields.line_of(key), text))
    slo = replace(indicator.base, objective=target or 0.5)
    if indicator.by_value:
        slo = replace(slo, threshold=_value(fields, slo))
    elif fields.has("op") or fields.has("value"):
        fields.value("op")
        fields.value("value")
        fields.complain(
            f"{fields.name('value')} goes with a thresholdMetric only; write `threshold` into its spec", "value"
        )
    fields.finish()
    by_itself = (
        latency(slo.threshold.total_seconds()) if slo.threshold and indicator.by_value else percent(slo.objective)
    )
    return (slo if target else None), label or by_itself


def _target(fields: Fields) -> float | None:
    if not fields.has("targetPercent"):
        return fields.ratio("target", example=0.99)
    written = fields.amount("targetPercent", example="99.5")
    if fields.has("target"):
        fields.value("target")
        fields.complain(f"{fields.name('target')} is given beside targetPercent; keep one", "target")
    if written is not None and written >= 100:  # noqa: PLR2004 - percent
        fields.complain(
            f"{fields.name('targetPercent')} is {written:g}; write less than 100, such as 99.5", "targetPercent"
        )
        return None
    return None if written is None else round(written / 100, 12)


def _value(fields: Fields, slo: Slo) -> timedelta:
    written = fields.amount("value", example="0.25")
    if written is None and not fields.has("value"):
        fields.missing("value", "0.25, in seconds")
    operator = fields.text("op", example="lte")
    if operator and operator not in ("lte", "lt"):
        fields.complain(f"{fields.name('op')} is {operator!r}; less time is good here, write lte", "op")
    # Longer values are rejected below.
    threshold = timedelta(seconds=min(written or 1, _MAX_SECONDS))
    if written is not None:
        check_threshold(fields, "value", threshold, slo.kind)
    return threshold


def _warn(document: Document, place: Place, text: str) -> None:
    document.warnings.append(Problem(document.line(place), text))
