"""What a promise counts, as expressions of Prometheus over the collector's latency histograms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from ...core.names import REQUEST_DURATION, STAGE_DURATION, STATUS_ERROR, STATUS_OK
from ...core.prometheus_names import FAMILIES, LABELS, format_labels
from ...core.stages import OVERHEAD, UNTIMED
from ...store.selection import HISTOGRAMS
from ..objectives.slo import Slo

METRIC_NAMES = {family.source: family.name for family in FAMILIES}
_UNITS = {
    "d": timedelta(days=1),
    "h": timedelta(hours=1),
    "m": timedelta(minutes=1),
    "s": timedelta(seconds=1),
}


@dataclass(frozen=True, slots=True)
class Histograms:
    """How latency histograms are read.

    Args:
        native: Whether they are native; classic ones else, whose buckets go by the label `le`.
    """

    native: bool = False

    def counted(self, name: str, matchers: str, window: str) -> str:
        """Return how many values a second the metric *name* counts over *window*, series by series."""
        if self.native:
            return f"histogram_count(rate({name}{{{matchers}}}[{window}]))"
        return f"rate({name}_count{{{matchers}}}[{window}])"

    def summed(self, name: str, matchers: str, window: str) -> str:
        """Return the sum of the values of a second, series by series."""
        if self.native:
            return f"histogram_sum(rate({name}{{{matchers}}}[{window}]))"
        return f"rate({name}_sum{{{matchers}}}[{window}])"

    def quantile(self, quantile: float, name: str, matchers: str, window: str, by: str = "") -> str:
        """Return the value at *quantile* of all series together, or of those that have the label *by* in common."""
        held = f"sum by ({by}) (rate({name}{{{matchers}}}[{window}]))"
        if not self.native:
            labels = ", ".join(filter(None, ("le", by)))
            held = f"sum by ({labels}) (rate({name}_bucket{{{matchers}}}[{window}]))"
        return f"histogram_quantile({quantile}, {held})"

    def requests(self, slo: Slo, window: str) -> str:
        """Return how many requests a second *slo* is about, over *window*."""
        return self._count(slo, window, ())

    def bad(self, slo: Slo, window: str) -> str:
        """Return how many of them broke the promise; those of `freshness` cannot be counted here."""
        requests = self.requests(slo, window)
        if slo.kind == "availability":
            return f"{self._count(slo, window, (('status', STATUS_ERROR),))} or 0 * {requests}"
        if slo.kind == "coverage":
            stages, matchers = METRIC_NAMES[STAGE_DURATION], matchers_of(slo)
            # Of requests without stages nothing is known: neither that they explain the time, nor that they do not.
            known = self.summed(stages, f'{format_labels(matchers)},stage!="{UNTIMED}"', window)
            unexplained = self.summed(stages, format_labels((*matchers, ("stage", OVERHEAD))), window)
            return f"{requests} * sum({unexplained}) / sum({known})"
        served = (("status", STATUS_OK),) if slo.kind == "latency" else ()
        return f"{requests} - ({self._within(slo, window, served)} or vector(0))"

    def _count(self, slo: Slo, window: str, more: Sequence[tuple[str, str]]) -> str:
        return f"sum({self.counted(_metric(slo), format_labels((*matchers_of(slo), *more)), window)})"

    def _within(self, slo: Slo, window: str, more: Sequence[tuple[str, str]]) -> str:
        """Return how many requests a second took no longer than the threshold."""
        name, matchers = _metric(slo), (*matchers_of(slo), *more)
        if not self.native:
            return f"sum(rate({name}_bucket{{{format_labels((*matchers, ('le', repr(threshold(slo)))))}}}[{window}]))"
        held = f"sum(rate({name}{{{format_labels(matchers)}}}[{window}]))"
        # Of nothing, the share is no number: the comparison leaves it out.
        return f"(histogram_fraction(-1, {threshold(slo)!r}, {held}) * histogram_count({held}) >= 0)"


def matchers_of(slo: Slo) -> tuple[tuple[str, str], ...]:
    """Return the labels that the histograms of *slo* have."""
    chosen = {LABELS[name]: getattr(slo, name) for name in needed_labels(slo)}
    key = {"stage": slo.stage, "definition": slo.definition}
    return ("service_name", slo.service), *((name, value) for name, value in (chosen | key).items() if value)


def needed_labels(slo: Slo) -> list[str]:
    """Return which labels the collector has to tell apart for *slo*, as its file names them."""
    return [name for name in ("version", "environment", "model", "route") if getattr(slo, name)]


def threshold(slo: Slo) -> float:
    """Return the threshold of *slo* in seconds; 0 for a promise that has none."""
    return slo.threshold.total_seconds() if slo.threshold else 0.0


def needed_bucket(slo: Slo) -> float | None:
    """Return the bound that classic buckets have to have for *slo*, where the ladder has it not."""
    bound = threshold(slo)
    return bound if slo.kind != "freshness" and bound and bound not in LADDER_BOUNDS else None


def prometheus_duration(length: timedelta) -> str:
    """Return *length* as Prometheus writes it.

    >>> prometheus_duration(timedelta(minutes=90)), span(timedelta(days=3)), prometheus_duration(timedelta(days=1, seconds=30))
    ('90m', '3d', '86430s')
    """
    return next(f"{length // unit}{name}" for name, unit in _UNITS.items() if not length % unit)


def _metric(slo: Slo) -> str:
    return METRIC_NAMES[HISTOGRAMS.get(slo.kind, REQUEST_DURATION)]
