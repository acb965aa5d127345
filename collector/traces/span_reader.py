"""Exports of spans, from bytes to columns that can wait for the requests they belong to, and to the traces our agents kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ...core.errors import WireError
from ..ingest.points import Window
from ..ingest.validation import IngestResult
from ..otlp.model import Correction, ResourceSpans
from ..otlp.responses import JSON
from .columns import Spans
from .json_spans import read_json
from .protobuf_spans import read_protobuf
from .rule_cache import RuleCache
from .rule_config import built_in
from .rules import Rule, RuleSet
from .span_validation import validate_spans


class SpanExport(NamedTuple):
    """What an export held.

    Args:
        spans: Those of all programs.
        kept: Those of our agents' own kept traces, which are counted already.
    """

    spans: Spans
    kept: list[ResourceSpans]


class SpanReader:
    """Reads exports of spans; it remembers what spans are, and several threads may use it at once.

    Args:
        own: Returns the user's rules, None for none; they come before the built-in ones. Another answer replaces the first.
    """

    def __init__(self, own: Callable[[], Sequence[Rule] | None] = lambda: None) -> None:
        self._own = own
        rules = own()
        self._in_force = rules, _meanings(rules)

    def read(
        self, media_type: str, body: bytes, window: Window, tally: IngestResult, correct: Correction | None = None
    ) -> SpanExport:
        """Read an inflated ExportTraceServiceRequest.

        Args:
            media_type: How it is encoded.
            body: Inflated.
            window: Which times are plausible.
            tally: Counts what is refused, with the reasons.
            correct: What is done to each resource; None for nothing.

        Raises:
            TooLargeError: It has more elements than the collector holds.
            WireError: It is malformed.
        """
        read_as = read_json if media_type == JSON else read_protobuf
        try:
            read, kept = read_as(body, self._current(), correct)
        except RecursionError as error:
            msg = "the body is nested too deeply"
            raise WireError(msg) from error
        return SpanExport(validate_spans(read, window, tally), kept)

    def _current(self) -> RuleCache:
        rules = self._own()
        # One name for both: threads that see the change at once do no harm.
        if rules is not self._in_force[0]:
            self._in_force = rules, _meanings(rules)
        return self._in_force[1]


def _meanings(own: Sequence[Rule] | None) -> RuleCache:
    return RuleCache(RuleSet((*(own or ()), *built_in())))
