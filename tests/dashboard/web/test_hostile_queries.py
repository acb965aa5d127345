"""Memory of a real `stagelens up` after hundreds of hostile queries of eight readers at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.dashboard.web.hostile_queries import MEGABYTE, Up, attack

pytestmark = pytest.mark.soak


def test_hostile_queries_leave_no_memory(tmp_path: Path) -> None:
    up = Up(tmp_path)
    found = attack(up, queries=330, clients=8)

    assert up.end() == 0
    assert not found.errors
    assert found.answers.keys() <= {200, 400, 422, 503}
    assert found.after - found.before < 50 * MEGABYTE
    assert found.peak - found.before < 200 * MEGABYTE
