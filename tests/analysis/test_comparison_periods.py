"""Over which times two versions are compared."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from stagelens.analysis.comparison import ROLLOUT, ServingPeriod, version_times

START = datetime(2026, 11, 1, tzinfo=UTC)
lives = st.tuples(st.integers(0, 1000), st.integers(1, 1000)).map(
    lambda pair: ServingPeriod(START + timedelta(minutes=pair[0]), START + timedelta(minutes=pair[0] + pair[1]))
)


@given(lives, lives, st.integers(0, 100))
def test_compared_periods_are_within_version_lifetimes(a: ServingPeriod, b: ServingPeriod, rate: int) -> None:
    def requests(first: ServingPeriod, second: ServingPeriod) -> int:
        return int(min((each.end - each.start).total_seconds() * rate for each in (first, second)))

    times = version_times(a, b, requests)

    for life, time in ((a, times.a), (b, times.b)):
        assert life.start <= time.start < time.end <= life.end
    shared = min(a.end, b.end) - max(a.start, b.start)
    if times.together:
        assert times.a == times.b
        assert times.a.end - times.a.start == shared > ROLLOUT
    elif a.start != b.start:
        assert times.a.end <= times.b.start or times.b.end <= times.a.start
    if rate >= 4 and shared > ROLLOUT:
        assert times.together


def test_an_overlap_with_too_few_requests_uses_consecutive_periods() -> None:
    a, b = (
        ServingPeriod(START, START + timedelta(hours=3)),
        ServingPeriod(START + timedelta(hours=1), START + timedelta(hours=2)),
    )

    times = version_times(a, b, lambda first, _: 0 if first == b else 5000)

    assert not times.together
    assert (times.a, times.b) == (ServingPeriod(a.start, b.start), b)
    assert version_times(a, b, lambda *_: 50).together
