"""Prometheus' text, read as far as anybody asks for it: lines of other metrics are not even looked at."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import islice

from prometheus_client import parser
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.samples import Sample

from ...core.errors import StagelensError
from .rules import base_of

OPENMETRICS = "application/openmetrics-text"
# A server with a hundred models and as many buckets has no more; one sample takes about 1 kB once read.
MAX_SAMPLES = 50_000
# When the process began: a counter that is larger than before may still have begun anew.
PROCESS_START = "process_start_time_seconds"

_NAME = re.compile(r"\s*(?:#\s*(?:TYPE|HELP|UNIT)\s+)?([^\s{]+)")
_END = "# EOF"
_SHOWN_CHARS = 80

Samples = Mapping[str, list[Sample]]


class ExpositionError(StagelensError):
    """The text is not an exposition; it says which line, and why."""


def parse(text: str, media_type: str, wanted: Collection[str], limit: int = MAX_SAMPLES) -> Samples:
    """Return the samples of metrics in *wanted* by their own names, suffixes included.

    Args:
        text: As it came.
        media_type: Of the answer, which says which of the two formats it is.
        wanted: Names of metrics, without suffix; `PROCESS_START` is read as well.
        limit: The most samples that are read.

    Raises:
        ExpositionError: A line of a metric that is asked for is wrong, or there are too many.
    """
    read: Callable[[Iterable[str]], Iterable[Metric]] = (
        openmetrics.text_fd_to_metric_families
        if media_type.startswith(OPENMETRICS)
        else parser.text_fd_to_metric_families
    )  # pyright: ignore[reportAssignmentType] - they ask for a file, and only go through its lines
    lines = _Lines(text, {*wanted, PROCESS_START})
    found: defaultdict[str, list[Sample]] = defaultdict(list)
    try:
        samples = (sample for family in read(lines) for sample in family.samples)
        for sample in islice(samples, limit):
            found[sample.name].append(sample)
        more = next(samples, None)
    except (ValueError, TypeError, IndexError, KeyError, AttributeError, OverflowError) as error:
        shown = lines.last.strip()[:_SHOWN_CHARS]
        msg = f"line {lines.number} is not what Prometheus' text format allows: {shown!r} ({error or type(error).__name__})"
        raise ExpositionError(msg) from error
    if more is not None:
        msg = f"it has more than {limit} samples of the metrics that are read; drop labels there"
        raise ExpositionError(msg)
    return found


class _Lines:
    """The lines of a text whose metrics are wanted; it remembers where it is."""

    def __init__(self, text: str, wanted: Collection[str]) -> None:
        self._text, self._wanted = text, wanted
        self.number, self.last = 0, ""

    def __iter__(self) -> Iterator[str]:
        for number, line in enumerate(self._text.splitlines(), 1):
            match = _NAME.match(line)
            if line.startswith(_END) or (match and base_of(match[1]) in self._wanted):
                self.number, self.last = number, line
                yield line
