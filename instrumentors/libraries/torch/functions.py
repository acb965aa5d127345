"""Functions that are called beside a model: calls inside a module belong to the module."""

from __future__ import annotations

import functools
from collections.abc import Callable

from ...instrumentor import CallsInstrumentor, Probed, timed_call
from .models import thread_state


class OutsideInstrumentor(CallsInstrumentor):
    """Base class of a library of such functions."""

    def wrapper(self, stage: str) -> Probed:
        enter = timed_call(stage).probe.enter
        return Probed.until_end(functools.partial(_enter, enter))


def _enter(enter: Callable[[], object]) -> object:
    return None if thread_state.inside else enter()
