"""The sentences at the start of the service page, with their links."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from stagelens.store import Batch, Store
from tests.dashboard import slow_replica
from tests.dashboard.rendering import check_views, shown, source_of
from tests.dashboard.rollout import WARM, batch

FAILED = replace(WARM, status="error", route="/b")
HEAD = "/s/shop?from=now-15m&tz=UTC # head"


def steady(seconds: float, first: int, last: int, requests: int = 100, stage: str = "forward") -> list[Batch]:
    return [batch(WARM, stage, seconds, ago, requests) for ago in range(first, last, 20)]


def failed(ago: int, requests: int = 20) -> Batch:
    made = batch(FAILED, "queue", 0.5, ago, requests)
    attributes = {"error.type": "504", "server.address": "ranker"}
    call = {"name": "", "stage": "dependency", "start_ns": 0, "duration_ns": 1, "attributes": attributes}
    kept = replace(made.traces[0], attributes={"error.type": "ReadTimeout"}, spans=[call])
    return replace(made, traces=[kept])


FAILING = [*steady(0.01, 920, 1800), *steady(0.02, 20, 900), *(failed(ago) for ago in range(30, 900, 20))]
# Timeouts make the service slower.
TIMEOUTS = [
    *steady(0.01, 20, 1800, 4000),
    *(
        each
        for ago in range(30, 890, 40)
        for each in (
            *(failed(ago, 66), batch(WARM, "queue", 0.3, ago + 20, 36)),
            *(batch(FAILED, "queue", 0.01, ago + 900, 66), batch(WARM, "queue", 0.05, ago + 920, 100)),
        )
    ),
]


@pytest.mark.parametrize(
    ("name", "made", "more"),
    [
        ("failing", FAILING, ()),
        ("timeouts", TIMEOUTS, ()),
        ("slower", [*steady(0.01, 920, 1800), *steady(0.03, 20, 900, 200, "queue")], ()),
        ("steady", steady(0.01, 20, 1800), ()),
        ("young", steady(0.01, 20, 400), (HEAD.replace(" #", "&vs=off #"),)),
        ("stopped", steady(0.01, 600, 1800), (HEAD.replace("15m", "5m"),)),
    ],
)
def test_the_page_starts_with_what_stands_out(
    store_of: Callable[[Iterable[Batch]], Store], name: str, made: Sequence[Batch], more: tuple[str, ...]
) -> None:
    check_views(f"summary_{name}", source_of(store_of(made)), HEAD, *more)


def test_a_slow_replica_is_stated_once(tmp_path: Path) -> None:
    store = slow_replica.store_of(tmp_path, slow_replica.traffic())
    source = source_of(store, now=slow_replica.NOW)
    text = shown(source, f"/s/{slow_replica.SERVICE}?from=now-45m", slow_replica.NOW)
    store.close()

    assert text.count("slower than the other 11") == 1
    assert text.index("slower than the other 11") < text.index("Where the time goes")
