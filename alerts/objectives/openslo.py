"""OpenSLO v1 documents as promises: SLO and SLI are read, of the other kinds is said what becomes of them.

A metric comes from a source of type `stagelens`, whose `spec` has the keys of an entry of `slos`: kind, stage, definition,
service, route, model, version, environment and, in a ratioMetric, threshold. Of a thresholdMetric, the threshold is the
`value` of the objective, in seconds.

Source: https://github.com/OpenSLO/OpenSLO, specification of apiVersion openslo/v1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from ...core.settings.yaml_document import Document, Place, Problem
from ...core.settings.yaml_fields import Fields
from ..formatting import latency, percent
from . import openslo_indicator
from .openslo_indicator import Indicator, Known, Object
from .slo import Slo
from .slo_fields import MAX_WINDOW, MIN_WINDOW, Entry, check_names, check_threshold

VERSION = "openslo/v1"
KINDS = ("SLO", "SLI", "Service", "DataSource", "AlertPolicy", "AlertCondition", "AlertNotificationTarget")
_POLICY = "pages and tickets follow Stagelens' own burn-rate policy, which `stagelens check` shows"
# What is accepted and has no effect.
_UNUSED = {
    "AlertPolicy": _POLICY,
    "AlertCondition": _POLICY,
    "AlertNotificationTarget": "messages go to the `channels` of the SLO file",
}
_MAX_SECONDS = 1e9
_METHODS = ("Occurrences", "Timeslices", "RatioTimeslices")
_DURATION = re.compile(r"(\d{1,9})([mhdwMQY])")
_DAYS = {"m": 1 / 1440, "h": 1 / 24, "d": 1, "w": 7, "M": 30, "Q": 90, "Y": 365}


def is_openslo(document: Document) -> bool:
    """Say whether *document* says that it is one of OpenSLO."""
    return isinstance(document.value, dict) and "apiVersion" in document.value


def read(documents: Sequence[Document]) -> list[tuple[Document, Entry]]:
    """Read all *documents*, which may refer to each other; what is wrong is in their problems, what is left out in their warnings."""
    objects = [found for found in (_object(each) for each in documents) if found is not None]
    known = {(each.kind, each.name): each for each in objects}
    for each in objects:
        if each.kind in _UNUSED:
            _warn(each.document, (), f"{each.kind} {each.name!r} is not used: {_UNUSED[each.kind]}")
    made = [(each.document, _slo(each, known)) for each in objects if each.kind == "SLO"]
    return [(document, entry) for document, entry in made if entry is not None]


def _object(document: Document) -> Object | None:
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
    return Object(document, kind, name, spec) if kind and not spec.broken else None


def _slo(found: Object, known: Known) -> Entry | None:
    spec, document = found.spec, found.document
    description, service = spec.text("description"), spec.text("service", example="checkout")
    base = Slo(found.name, service, 0.5, _window(spec, document), description=description)
    indicator = openslo_indicator.read(found, base, known)
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
    return Entry(("metadata",), found.name, _objectives(objectives, found, indicator))


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
        cure = f"write a window from {MIN_WINDOW.days}d to {MAX_WINDOW.days}d, such as 30d or 4w"
        fields.complain(f"{fields.name('duration')} is {text!r}; {cure}", "duration")
    return window or month


def _objectives(items: Iterable[tuple[Place, Any]], found: Object, indicator: Indicator) -> tuple[Slo, ...]:
    read = [_objective(Fields(found.document, *item, example="target: 0.99"), found, indicator) for item in items]
    made = [(slo, label) for slo, label in read if slo is not None]
    if len(made) == 1:
        return (made[0][0],)
    slos = tuple(replace(slo, name=f"{slo.name} ({label})") for slo, label in made)
    check_names(found.spec, slos)
    return slos


def _objective(fields: Fields, found: Object, indicator: Indicator) -> tuple[Slo | None, str]:
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
    # What is longer is refused, however long.
    threshold = timedelta(seconds=min(written or 1, _MAX_SECONDS))
    if written is not None:
        check_threshold(fields, "value", threshold, slo.kind)
    return threshold


def _warn(document: Document, place: Place, text: str) -> None:
    document.warnings.append(Problem(document.line(place), text))
