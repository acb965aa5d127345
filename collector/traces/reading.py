"""Exports of spans, from bytes to columns that can wait for the requests they belong to, and to the traces our agents kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ...core.errors import WireError
from ..ingest.points import Window
from ..ingest.validation import Tally
from ..otlp.model import Correction, ResourceSpans
from ..otlp.responses import JSON
from .columns import Spans
from .config import built_in
from .json_spans import read_json
from .protobuf_spans import read_protobuf
from .rule_cache import Meanings
from .rules import Rule, Rules
from .span_validation import assemble


class Export(NamedTuple):
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
        self, media_type: str, body: bytes, window: Window, tally: Tally, correct: Correction | None = None
    ) -> Export:
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
        return Export(assemble(read, window, tally), kept)

    def _current(self) -> Meanings:
        rules = self._own()
        # One name for both: threads that see the change at once do no harm.
        if rules is not self._in_force[0]:
            self._in_force = rules, _meanings(rules)
        return self._in_force[1]


def _meanings(own: Sequence[Rule] | None) -> Meanings:
    return Meanings(Rules((*(own or ()), *built_in())))
