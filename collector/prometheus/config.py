"""The section `prometheus:` of the collector's file: which labels the latency histograms have, and how many there may be."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ...core.settings.yaml_document import Document, Place
from ...core.settings.yaml_fields import Fields, meant
from .buckets import HIGHEST_SECONDS, LOWEST_SECONDS

# What may be told apart besides service and status, which always are: the names Prometheus has for it. `service` and
# `namespace` are what Kubernetes' own discovery calls the targets it found.
LABELS = {
    "version": "service_version",
    "environment": "environment",
    "model": "model",
    "model_version": "model_version",
    "route": "route",
    "device": "device",
}
# What totals of the store tell apart: a service has few of them, however many routes and models it has.
DEFAULT_LABELS = ("version", "environment")
# Of 28 lines each, and 9.5 kB of memory.
DEFAULT_HISTOGRAMS, MAX_HISTOGRAMS = 1000, 20_000
MAX_BUCKETS = 30


@dataclass(frozen=True, slots=True)
class Settings:
    """What is told.

    Args:
        labels: What is told apart besides service and status; keys of `LABELS`.
        histograms: How many histograms there may be; 0 for none at all.
        buckets: Bounds of classic buckets besides the ladder. [seconds]
    """

    labels: tuple[str, ...] = DEFAULT_LABELS
    histograms: int = DEFAULT_HISTOGRAMS
    buckets: tuple[float, ...] = ()

    def in_words(self) -> str:
        """Say it as a sentence would.

        >>> Settings().in_words()
        'Prometheus of service, status, version, environment, in 1000 histograms at most'
        """
        told = ", ".join(("service", "status", *self.labels))
        return (
            f"Prometheus of {told}, in {self.histograms} histograms at most"
            if self.histograms
            else "Prometheus nothing"
        )


def read(document: Document, place: Place, value: Any) -> Settings:
    """Read the section; what is wrong with it is in the document's problems, and its default stands."""
    fields = Fields(document, place, value, example="labels: [version, route]")
    found = Settings(_labels(fields), _histograms(fields), _buckets(fields))
    fields.finish()
    return found


def _labels(fields: Fields) -> tuple[str, ...]:
    if not fields.has("labels"):
        return DEFAULT_LABELS
    written = fields.value("labels")
    if not isinstance(written, list):
        fields.complain(f"{fields.name('labels')} is {written!r}; write a list, such as [version, route]", "labels")
        return DEFAULT_LABELS
    for each in written:
        if not isinstance(each, str) or each not in LABELS:
            cure = f"write any of {', '.join(LABELS)}{meant(str(each), LABELS)}"
            fields.complain(f"{fields.name('labels')} has {each!r}; {cure}", "labels")
    return tuple(label for label in LABELS if label in written)


def _histograms(fields: Fields) -> int:
    if not fields.has("histograms"):
        return DEFAULT_HISTOGRAMS
    written = fields.value("histograms")
    if isinstance(written, bool) or not isinstance(written, int) or not 0 <= written <= MAX_HISTOGRAMS:
        cure = f"write a whole number from 0, for none, to {MAX_HISTOGRAMS}"
        fields.complain(f"{fields.name('histograms')} is {written!r}; {cure}", "histograms")
        return DEFAULT_HISTOGRAMS
    return written


def _buckets(fields: Fields) -> tuple[float, ...]:
    if not fields.has("buckets"):
        return ()
    written = fields.value("buckets")
    if not isinstance(written, list) or len(written) > MAX_BUCKETS:
        cure = f"write a list of at most {MAX_BUCKETS} numbers of seconds, such as [0.3, 1.5]"
        fields.complain(f"{fields.name('buckets')} is {written!r}; {cure}", "buckets")
        return ()
    for each in written:
        if not _is_bound(each):
            cure = f"write seconds from {LOWEST_SECONDS:.0e} to {HIGHEST_SECONDS:.0f}, such as 0.3"
            fields.complain(f"{fields.name('buckets')} has {each!r}; {cure}", "buckets")
    return tuple(sorted({float(each) for each in written if _is_bound(each)}))


def _is_bound(value: Any) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
        and LOWEST_SECONDS <= value <= HIGHEST_SECONDS
    )
