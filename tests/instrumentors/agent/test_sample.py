"""Which requests are retained as traces."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from stagelens.instrumentors.agent.sample import Largest, Sampler
from stagelens.instrumentors.config import SamplingLimits


class Call:
    """A request that is only itself: equal durations must not make two requests one."""

    def __init__(self, duration: int, *, failed: bool = False, cold: bool = False, forced: bool = False) -> None:
        self.duration = duration
        self.failed = failed
        self.cold = cold
        self.forced = forced


calls = st.lists(
    st.builds(Call, st.integers(0, 30), failed=st.booleans(), cold=st.booleans(), forced=st.booleans()), max_size=60
)
limits = st.integers(0, 5)


def sampled(sequence: list[Call], keep: SamplingLimits) -> list[tuple[Call, str]]:
    sampler: Sampler[Call] = Sampler(keep)
    rng = random.Random(1)
    for call in sequence:
        sampler.offer(call, call.duration, rng.getrandbits(64), failed=call.failed, cold=call.cold, forced=call.forced)
    return [(call, because) for call, because in sampler.retained()]


@given(st.lists(st.integers(0, 30)), st.integers(0, 8))
def test_the_slowest_of_any_sequence_are_retained(durations: list[int], size: int) -> None:
    slowest: Largest[int] = Largest(size)
    for duration in durations:
        slowest.offer(duration, duration)

    assert slowest.items() == sorted(durations, reverse=True)[:size]


@given(calls, st.builds(SamplingLimits, limits, limits, limits, limits, limits))
def test_the_slowest_and_errors_are_retained_once_within_the_limits(sequence: list[Call], keep: SamplingLimits) -> None:
    retained = [call for call, _ in sampled(sequence, keep)]
    slowest = sorted((call.duration for call in sequence), reverse=True)[: keep.slow]

    assert len(retained) <= keep.slow + keep.errors + keep.uniform + keep.cold + keep.forced
    assert len({id(call) for call in retained}) == len(retained)
    assert not Counter(slowest) - Counter(call.duration for call in retained)
    assert sum(call.failed for call in retained) >= min(sum(call.failed for call in sequence), keep.errors)


def test_services_retain_the_same_failed_cold_and_random_traces() -> None:
    rng = random.Random(3)
    keep = SamplingLimits(slow=0, errors=4, uniform=3, cold=2, forced=1)
    draws = {rng.getrandbits(64): Call(0, failed=not rng.randrange(9), cold=not rng.randrange(9)) for _ in range(500)}
    services: list[set[Call]] = []
    for _ in range(2):
        sampler: Sampler[Call] = Sampler(keep)
        for draw in rng.sample(sorted(draws), len(draws)):
            call = draws[draw]
            sampler.offer(call, rng.randrange(1000), draw, failed=call.failed, cold=call.cold)
        services.append({call for call, _ in sampler.retained()})

    assert services[0] == services[1]
    assert {draws[draw] for draw in sorted(draws)[-keep.uniform :]} <= services[0]


def test_each_request_is_retained_for_its_first_reason() -> None:
    keep = SamplingLimits(slow=4, errors=10, uniform=2, cold=2, forced=50)
    rng = random.Random(1)
    marked = rng.sample(range(9_000), 14)
    errors, cold, forced = set(marked[:10]), set(marked[10:12]), set(marked[12:])
    sequence = [
        Call(duration, failed=duration in errors, cold=duration in cold, forced=duration in forced)
        for duration in rng.sample(range(10_000), 10_000)
    ]
    retained = sampled(sequence, keep)
    by_reason = {reason: {call.duration for call, because in retained if because == reason} for _, reason in retained}

    assert len(by_reason.pop("uniform", ())) <= 2
    assert by_reason == {"forced": forced, "error": errors, "slow": set(range(9_996, 10_000)), "cold": cold}
