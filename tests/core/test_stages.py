"""Order and names of stages."""

from __future__ import annotations

from stagelens.core.stages import OVERHEAD, STAGES, position


def test_sorting_by_position_gives_the_fixed_order() -> None:
    keys = [stage.key for stage in STAGES]

    ordered = sorted([*reversed(keys), "zebra", "apple"], key=position)

    assert ordered == [*keys[:-1], "apple", "zebra", OVERHEAD]
