"""Rate limits: exact over any time, with bounded memory."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from stagelens.collector.server.access_config import RateLimits
from stagelens.collector.server.auth import whole_seconds
from stagelens.collector.server.rate_limits import BURST_SECONDS, ClientMeter, ClientMeters

ONE = RateLimits(requests_per_second=1.0)


@given(st.floats(0.01, 1000), st.lists(st.floats(0, 5), max_size=200))
def test_no_client_exceeds_its_rate_and_burst(rate: float, pauses: list[float]) -> None:
    meter, now, admitted = ClientMeter(RateLimits(requests_per_second=rate), 0.0), 0.0, 0
    for pause in pauses:
        now += pause
        admitted += meter.request(now) == 0.0

        assert admitted <= max(rate * BURST_SECONDS, 1.0) + rate * now + 1e-6


# In floating point, a second after 0.13 s is slightly less than a second.
@example([(0.13, 5500), (0.0, 0)])
@given(st.lists(st.tuples(st.floats(0, 5), st.integers(0, 10_000)), max_size=100))
def test_a_client_that_waits_the_retry_delay_is_accepted(sent: list[tuple[float, int]]) -> None:
    meter, now = ClientMeter(RateLimits(2.0, 500.0), 0.0), 0.0
    for pause, size_bytes in sent:
        now += pause
        wait_seconds = meter.request(now)
        if wait_seconds:
            now += whole_seconds(wait_seconds)

            assert meter.request(now) == 0.0
        meter.body(size_bytes, now)


def test_memory_for_addresses_is_bounded() -> None:
    meters = ClientMeters()
    spent = meters.of("attacker", ONE, 0.0)
    while not spent.request(0.0):
        pass
    for number in range(100_000):
        meters.of(number, ONE, 0.0).request(0.0)

    assert len(meters) == 10_000
    assert meters.of("attacker", ONE, 0.0) is spent


def test_addresses_over_the_limit_share_one_meter() -> None:
    meters = ClientMeters(most=3)
    for number in range(3):
        meters.of(number, ONE, 0.0).request(0.0)

    assert meters.of("late", ONE, 1e-3) is meters.of("later", ONE, 1e-3)
    assert meters.of("late", ONE, 60.0) is not meters.of("later", ONE, 60.0)


def test_changed_limits_apply_immediately() -> None:
    meters = ClientMeters()
    before = meters.of("team-a", ONE, 0.0)

    assert meters.of("team-a", RateLimits(requests_per_second=2.0), 0.0) is not before
