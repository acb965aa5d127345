"""Stages keep one order and one set of names everywhere."""

from __future__ import annotations

from stagelens.core.stages import OVERHEAD, STAGES, label, position


def test_sorting_by_position_gives_the_fixed_order() -> None:
    """Any mix of stages sorts into the order of the charts, the user's own just below overhead."""
    keys = [stage.key for stage in STAGES]

    ordered = sorted([*reversed(keys), "zebra", "apple"], key=position)

    assert ordered == [*keys[:-1], "apple", "zebra", OVERHEAD]


def test_a_stage_nobody_knows_is_shown_as_written() -> None:
    """A user's own stage needs no registration to have a name."""
    assert label("rerank") == "rerank"
