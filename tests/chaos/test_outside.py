"""Attacks without credentials: a short run of what `make outside` does at length."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.chaos.audit import held
from tests.chaos.outside import ATTACKS, Stagelens, attacked

pytestmark = pytest.mark.soak


def test_attacks_do_not_block_readers_or_senders(tmp_path: Path) -> None:
    to, acknowledged = Stagelens(tmp_path), Counter[str]()
    outcomes = [attacked(to, name, 2, acknowledged) for name in ATTACKS]
    to.end()
    counted = held(to.url).requests

    assert {outcome.name: +outcome.refused for outcome in outcomes} == {outcome.name: Counter() for outcome in outcomes}
    assert acknowledged.total() > 0
    assert {name: counted[name] for name in acknowledged} == dict(acknowledged)
