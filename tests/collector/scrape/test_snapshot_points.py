"""Error bounds of quantiles from scraped buckets contain the exact quantile."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from stagelens.collector.scrape import config, exposition, snapshot
from stagelens.collector.scrape.config import ScrapeTarget
from stagelens.collector.scrape.points import points_of
from stagelens.collector.scrape.snapshot import Snapshot, difference_between
from stagelens.core import names
from stagelens.core.histogram import Distribution, Histogram, rank_of

VALUES = st.lists(st.floats(1e-7, 1e5), min_size=1, max_size=60)
EDGES = st.lists(st.floats(1e-6, 1e4), unique=True, max_size=8).map(sorted)


def merged(values: list[float], edges: list[float]) -> dict[str, Histogram]:
    engine = config.engines()["vllm"]
    total: dict[str, Histogram] = {}
    base = Snapshot(0.0, "")
    for at, seen in ((10.0, values[: len(values) // 2]), (20.0, values)):
        lines = [
            f'vllm:e2e_request_latency_seconds_bucket{{le="{edge!r}"}} {sum(value <= edge for value in seen)}'
            for edge in edges
        ]
        lines.append(f'vllm:e2e_request_latency_seconds_bucket{{le="+Inf"}} {len(seen)}')
        lines.append(f"vllm:e2e_request_latency_seconds_sum {math.fsum(seen)!r}")
        samples = exposition.parse_exposition("\n".join(lines), "text/plain", engine.wanted())
        difference = difference_between(base, snapshot.read_snapshot(samples, engine, at, ""))
        base = difference.base
        for point in points_of(difference.added, ScrapeTarget(url="http://e/metrics", service="s"), engine, int(at)):
            total.setdefault(point.metric, Histogram()).merge(point.histogram)
    return total


@given(VALUES, EDGES, st.floats(0, 1))
def test_the_interval_of_a_quantile_contains_it_and_is_no_wider_than_its_bucket(
    values: list[float], edges: list[float], quantile: float
) -> None:
    found = Distribution(*(merged(values, edges)[metric] for metric in names.ENGINE_REQUEST))
    interval = found.quantile(quantile)
    true = sorted(values)[rank_of(quantile, len(values)) - 1]
    above = min((edge for edge in edges if edge >= true), default=math.inf)
    below = max((edge for edge in edges if edge < true), default=0.0)

    assert interval is not None
    assert below / 1.0221 <= interval.low <= true <= interval.high <= above * 1.0221
    assert found.count == found.highs.count == len(values)
    assert found.mean is not None
    assert math.isclose(found.mean * len(values), math.fsum(values), rel_tol=1e-9)
    assert found.lows.sum == found.highs.sum
