"""The section `prometheus:` of the collector's file."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from ..core.prometheus_names import DEFAULT_LABELS, LABELS
from ..core.settings.field_types import reject, reject_value
from ..core.settings.section import Section, read_section
from ..core.settings.yaml_config import Document, Place, meant

# From a microsecond to a day and a half.
LOWEST_SECONDS, HIGHEST_SECONDS = 2.0**-20, 2.0**17
# Default limit of histograms; each has 28 lines and takes 9.5 kB of memory.
DEFAULT_HISTOGRAMS, MAX_HISTOGRAMS = 1000, 20_000
MAX_BUCKETS = 30


def _label(value: object) -> str:
    if not isinstance(value, str) or value not in LABELS:
        reject_value(f"write any of {', '.join(LABELS)}{meant(str(value), LABELS)}")
    return value


def _in_order(labels: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(label for label in LABELS if label in labels)


def _bound(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not LOWEST_SECONDS <= value <= HIGHEST_SECONDS:
        reject_value(f"write seconds from {LOWEST_SECONDS:.0e} to {HIGHEST_SECONDS:.0f}", example="0.3")
    return float(value)


def _sorted_bounds(bounds: tuple[float, ...]) -> tuple[float, ...]:
    if len(bounds) > MAX_BUCKETS:
        reject(f"has {len(bounds)} bounds; write at most {MAX_BUCKETS}, such as [0.3, 1.5]")
    return tuple(sorted(set(bounds)))


class PrometheusSettings(Section):
    example = "labels: [version, route]"

    # Labels besides service and status; keys of `LABELS`.
    labels: Annotated[tuple[Annotated[str, BeforeValidator(_label)], ...], AfterValidator(_in_order)] = DEFAULT_LABELS
    # Limit of histograms; 0 for none.
    histograms: int = Field(default=DEFAULT_HISTOGRAMS, ge=0, le=MAX_HISTOGRAMS, strict=True)
    # Bounds of classic buckets besides the ladder [seconds].
    buckets: Annotated[tuple[Annotated[float, BeforeValidator(_bound)], ...], AfterValidator(_sorted_bounds)] = ()

    def in_words(self) -> str:
        """Return a one-line description of the settings for `--check`.

        >>> PrometheusSettings().in_words()
        'at most 1000 histograms, by service, status, version, environment'
        """
        labels = ", ".join(("service", "status", *self.labels))
        return f"at most {self.histograms} histograms, by {labels}" if self.histograms else "no histograms"


def read_prometheus(document: Document, path: Place, value: Any) -> PrometheusSettings:
    """Read the section `prometheus:`; errors become problems of the document, and the default applies."""
    return read_section(PrometheusSettings, document, path, value) or PrometheusSettings()
