"""What an OpenSLO indicator counts: a thresholdMetric or a ratioMetric, of a source of type `stagelens`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Literal

from ...core.settings.yaml_document import Document, Problem
from ...core.settings.yaml_fields import Fields, meant
from .slo import Slo
from .slo_fields import THRESHOLDS, check_threshold, promised

SOURCE = "stagelens"
# Stands for a threshold that is written elsewhere.
_SOME = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Object:
    """One OpenSLO document.

    Args:
        document: Where it is written.
        kind: Its kind, such as `SLO`.
        name: Of its metadata.
        spec: What it says.
    """

    document: Document
    kind: str
    name: str
    spec: Fields


# Objects by kind and name.
Known = Mapping[tuple[str, str], Object]


@dataclass(frozen=True, slots=True)
class Indicator:
    """What an SLO counts.

    Args:
        base: The promise, but for its share and, with `by_value`, its threshold.
        by_value: Whether each objective has a threshold of its own.
    """

    base: Slo
    by_value: bool


def read(slo: Object, base: Slo, known: Known) -> Indicator | None:
    """Read what *slo* counts, inline or from the SLI it refers to.

    Returns:
        None when it is wrong, or not ours to count; the documents say which.
    """
    reference, inline = slo.spec.text("indicatorRef"), slo.spec.mapping("indicator", example="spec: …")
    if inline is not None:
        inline.value("metadata")
        spec = inline.mapping("spec", example="ratioMetric: …")
        inline.finish()
        if spec is None:
            inline.missing("spec", "…")
            return None
        return _Reading(slo.document, base, known).metric(spec)
    if not reference:
        slo.spec.missing("indicatorRef", "checkout-latency` with the name of an SLI, or `indicator")
        return None
    found = known.get(("SLI", reference))
    if found is None:
        cure = meant(reference, [name for kind, name in known if kind == "SLI"]) or "; add an SLI of that name"
        slo.spec.complain(f"spec.indicatorRef is {reference!r}, which is no SLI of these files{cure}", "indicatorRef")
        return None
    spec = Fields(found.document, ("spec",), found.document.value["spec"])
    return _Reading(found.document, base, known).metric(spec)


@dataclass(frozen=True, slots=True)
class _Reading:
    """Reads one indicator of *document* for the promise *base*."""

    document: Document
    base: Slo
    known: Known

    def metric(self, spec: Fields) -> Indicator | None:
        """Read the `spec` of an SLI."""
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
        return None if slo is None else Indicator(slo, by_value=True)

    def _ratio(self, ratio: Fields) -> Indicator | None:
        ratio.value("counter")
        for key in ("raw", "rawType"):
            if ratio.has(key):
                ratio.value(key)
                ratio.complain(f"{ratio.name(key)} is not supported: requests are counted; write good and total", key)
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
        if _whose(slo) != _whose(among):
            ratio.complain(f"{ratio.name('total')} counts other requests; give it the same filters", "total")
        return Indicator(slo, by_value=False)

    def _source(self, metric: Fields, role: Literal["value", "share", "total"]) -> Slo | None:
        """Return the promise with what the source of *metric* says; None for a source that is not ours."""
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
        slo = promised(spec, self.document, base)
        slo = self._with_threshold(spec, slo, role)
        spec.finish()
        return slo

    def _type(self, source: Fields) -> str:
        reference, kind = source.text("metricSourceRef"), source.text("type")
        found = self.known.get(("DataSource", reference))
        return kind or ("" if found is None else found.spec.text("type"))

    def _with_threshold(self, spec: Fields, slo: Slo, role: str) -> Slo:
        if role == "value":
            # Seconds are compared to a value: without a kind it is the latency of requests.
            return slo if spec.has("kind") or spec.has("stage") else replace(slo, threshold=_SOME)
        needed = THRESHOLDS.get(slo.kind) if role == "share" else None
        threshold = spec.duration("threshold", example=needed or "250ms", required=needed is not None)
        if threshold is not None:
            check_threshold(spec, "threshold", threshold, slo.kind)
        return replace(slo, threshold=threshold)


def _whose(slo: Slo) -> tuple[str | None, ...]:
    return slo.service, slo.route, slo.model, slo.version, slo.environment
