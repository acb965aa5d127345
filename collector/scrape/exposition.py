"""Samples of a Prometheus exposition; only the lines of wanted metrics are parsed."""

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
from .config import base_of

OPENMETRICS = "application/openmetrics-text"
# Maximum number of samples, more than a server with a hundred models has; a sample takes about 1 kB in memory.
MAX_SAMPLES = 50_000
# Metric of the start of the process, which reveals a restart even if counters are larger than before.
PROCESS_START = "process_start_time_seconds"

_NAME = re.compile(r"\s*(?:#\s*(?:TYPE|HELP|UNIT)\s+)?([^\s{]+)")
_END = "# EOF"
_SHOWN_CHARS = 80

Samples = Mapping[str, list[Sample]]


class ExpositionError(StagelensError):
    """The text is not a valid exposition; the message names the line."""


def parse_exposition(text: str, media_type: str, wanted: Collection[str], limit: int = MAX_SAMPLES) -> Samples:
    read: Callable[[Iterable[str]], Iterable[Metric]] = (
        openmetrics.text_fd_to_metric_families
        if media_type.startswith(OPENMETRICS)
        else parser.text_fd_to_metric_families
    )  # pyright: ignore[reportAssignmentType] - typed as a file, but only iterated over
    lines = _Lines(text, {*wanted, PROCESS_START})
    samples_by_name: defaultdict[str, list[Sample]] = defaultdict(list)
    try:
        samples = (sample for family in read(lines) for sample in family.samples)
        for sample in islice(samples, limit):
            samples_by_name[sample.name].append(sample)
        more = next(samples, None)
    except (ValueError, TypeError, IndexError, KeyError, AttributeError, OverflowError) as error:
        shown = lines.last.strip()[:_SHOWN_CHARS]
        msg = f"line {lines.number} is not valid in the Prometheus text format: {shown!r} ({error or type(error).__name__})"
        raise ExpositionError(msg) from error
    if more is not None:
        msg = f"it has more than {limit} samples of the scraped metrics; drop labels at the target"
        raise ExpositionError(msg)
    return samples_by_name


class _Lines:
    """Iterator over the lines of the wanted metrics, with the number and text of the last line."""

    def __init__(self, text: str, wanted: Collection[str]) -> None:
        self._text, self._wanted = text, wanted
        self.number, self.last = 0, ""

    def __iter__(self) -> Iterator[str]:
        for number, line in enumerate(self._text.splitlines(), 1):
            match = _NAME.match(line)
            if line.startswith(_END) or (match and base_of(match[1]) in self._wanted):
                self.number, self.last = number, line
                yield line
