"""Calls whose server stages are averages of server statistics."""

from __future__ import annotations

from typing import Any

from stagelens.instrumentors.libraries.tritonclient.statistics import Averaged

SECOND = 10**9


def ready(call: Averaged) -> bool:
    """Ask as the background does: once when the request has ended, and again when all that ended with it were asked."""
    call.ready()
    return call.ready()


def spent(marks: list[Any]) -> dict[str, int]:
    return {marks[at]: marks[at + 2] - marks[at + 1] for at in range(0, len(marks), 3)}
