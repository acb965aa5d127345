"""The phases of this process's cold start as spans: each by itself, all of them in one trace that nothing else is in."""

from __future__ import annotations

import os

from ..core import names
from ..core.stages import LOAD_START
from . import loads as own
from .loads import Load, loads
from .spans import Span, Trace


class LoadSpans:
    """Makes spans of what was noted; of one process."""

    def __init__(self) -> None:
        self._trace_id = os.urandom(16).hex()
        self._began = False

    def take(self, first_request: int | None) -> list[Trace]:
        """Return what was noted since the last call: one trace, none for nothing.

        Args:
            first_request: When the first request began, by the recorder's clock; None before there is one. [nanoseconds]
        """
        found = loads.take()
        if first_request is not None and not self._began:
            self._began = True
            born = min(own.born, first_request)
            found.append(Load(LOAD_START.key, "", "", born, first_request, first_request - born))
        return [Trace(self._trace_id, sampled=False, spans=[_span(load) for load in found])] if found else []


def _span(load: Load) -> Span:
    attributes: dict[str, str | int] = {names.LOAD_PHASE: load.phase, names.LOAD_OWN: load.own_ns}
    said = {names.MODEL: load.model, names.INPUT_SHAPE: load.shape}
    attributes |= {key: value for key, value in said.items() if value}
    return Span(f"load {load.phase}", os.urandom(8).hex(), "", "internal", load.start, load.end, attributes)
