"""Spans of one export between parsing and validation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..otlp.model import ResourceSpans
from .columns import Rows, SpanSource
from .measurements import SpanMeasurements
from .rules import RuleCache, SpanMeaning, SpanOrigin


@dataclass(slots=True)
class ParsedSpans:
    """Spans of one export. The last ones stay serialized, so that they can be decoded with those of other exports."""

    rule_cache: RuleCache
    retained: list[ResourceSpans] = field(default_factory=list[ResourceSpans])  # traces that Stagelens agents retained
    # Processes that sent the spans, one for each run of consecutive spans.
    sources: list[SpanSource] = field(default_factory=list[SpanSource])
    counts: list[int] = field(default_factory=list[int])  # number of consecutive spans of each element of *sources*
    spans: list[bytes] = field(default_factory=list[bytes])  # serialized spans
    origins: list[SpanOrigin] = field(default_factory=list[SpanOrigin])  # origin of each serialized span
    spans_bytes: int = 0  # size of *spans*

    # Ids, times and error flags of the decoded spans, in parts; not validated, ids of a wrong size are zero.
    rows: list[Rows] = field(default_factory=list[Rows])
    count: int = 0  # number of decoded spans
    # Trace and span id of the spans with an id of a wrong size, by row number.
    malformed: dict[int, tuple[bytes, bytes]] = field(default_factory=dict[int, tuple[bytes, bytes]])
    meanings: list[SpanMeaning] = field(default_factory=list[SpanMeaning])  # rule result of each decoded span
    # Values of the attributes and events that rules name, one for each span that has any.
    measurements: list[SpanMeasurements] = field(default_factory=list[SpanMeasurements])
    elements: int = 0  # number of attributes and events that were examined one after the other

    def add(self, spans: Sequence[bytes], origin: SpanOrigin) -> None:
        self.spans += spans
        self.origins += [origin] * len(spans)
        self.spans_bytes += sum(map(len, spans))
