"""Order and names of stages."""

from __future__ import annotations

from stagelens.core.stages import OVERHEAD, STAGES, label, position


def test_sorting_by_position_gives_the_fixed_order() -> None:
    keys = [stage.key for stage in STAGES]

    ordered = sorted([*reversed(keys), "zebra", "apple"], key=position)

    assert ordered == [*keys[:-1], "apple", "zebra", OVERHEAD]


def test_an_unknown_stage_is_shown_unchanged() -> None:
    assert label("rerank") == "rerank"
