"""What slow requests share: causes, ranking, silence and the sentence."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from stagelens.analysis.attributes import (
    WHEN,
    AttributeCounts,
    SlowRequests,
    find_causes,
    highest_percentile,
    score_sets,
)
from stagelens.core.attributes import attribute, band_of
from stagelens.core.histogram import bucket_index

Ints, Floats, Texts = NDArray[np.int64], NDArray[np.float64], NDArray[np.str_]

SCALE, STEPS, STEP, START, FAST = 2, 60, 60, 1_795_000_020, 0.1


def counts_of(latency: Floats, values: Mapping[str, Texts], at: Ints | None = None) -> AttributeCounts:
    """Return the counts of requests, which are spread evenly over the steps unless *at* has the step of each."""
    at = np.arange(len(latency)) % STEPS if at is None else at
    buckets = np.array([bucket_index(float(each), SCALE) for each in latency])
    index = np.arange(buckets.min(), buckets.max() + 1)
    requests: dict[str, dict[str, Ints]] = {}
    for key, of in values.items():
        requests[key] = {}
        for value in np.unique(of):
            counted = np.zeros((STEPS, len(index)), np.int64)
            np.add.at(counted, (at[of == value], buckets[of == value] - index[0]), 1)
            requests[key][str(value)] = counted
    return AttributeCounts(SCALE, index, START + STEP * np.arange(STEPS), requests)


def noise(seed: int, size: int) -> tuple[np.random.Generator, Floats]:
    rng = np.random.default_rng(seed)
    return rng, FAST * np.exp(rng.normal(0, 0.4, size))


def pick(rng: np.random.Generator, size: int, **shares: float) -> Texts:
    """Return the value of each request, by share."""
    return rng.choice(list(shares), size, p=list(shares.values()))


@pytest.mark.parametrize(
    ("key", "shares", "label"),
    [
        ("tenant", {"acme": 0.05, "globex": 0.35, "initech": 0.6}, "tenant acme"),
        ("replica", {"web-1:7": 0.1, "web-2:7": 0.4, "web-3:7": 0.5}, "replica web-1:7"),
        ("caller", {"ranker": 0.1, "": 0.9}, "caller ranker"),
        ("cold", {"1": 0.05, "0": 0.95}, "cold start 1"),
        ("version", {"2.0.0": 0.2, "1.0.0": 0.8}, "version 2.0.0"),
    ],
)
def test_a_value_of_slow_requests_is_named(key: str, shares: dict[str, float], label: str) -> None:
    rng, latency = noise(1, 6000)
    of = pick(rng, 6000, **shares)
    latency[of == next(iter(shares))] *= 8
    found = find_causes(counts_of(latency, {key: of, "model": pick(rng, 6000, a=0.5, b=0.5)}))

    assert [each.label for each in found.causes] == [label]
    assert found.compared == ("model",)
    assert found.causes[0].same_as == ""


@pytest.mark.parametrize(
    ("key", "start", "is_slow", "value"),
    [
        ("request_size", 1 << 20, "from", "1 MB and more"),
        ("request_size", 1 << 12, "below", "up to 4 kB"),
        ("batch_size", 16, "from", "16 and more"),
        ("output_tokens", 64, "below", "up to 63"),
        ("concurrency", 8, "from", "8 and more"),
    ],
)
def test_a_range_of_numbers_is_named(key: str, start: int, is_slow: str, value: str) -> None:
    rng, latency = noise(2, 20_000)
    numbers = (start * np.exp2(rng.normal(-3 if is_slow == "from" else 3, 2, 20_000))).astype(np.int64)
    latency[numbers >= start if is_slow == "from" else numbers < start] *= 8
    bands = np.array([band_of(attribute(key).kind, int(number)) for number in numbers])
    (found,) = find_causes(counts_of(latency, {key: bands})).causes

    assert (found.key, found.value) == (key, value)
    assert list(found.values) == sorted(found.values, key=int)


def test_the_sentence_has_the_numbers_of_the_requests() -> None:
    rng, latency = noise(3, 50_000)
    size = pick(rng, 50_000, **{"65536": 0.94, "1048576": 0.06})
    latency[size == "1048576"] *= 6
    found = find_causes(counts_of(latency, {"request_size": size, "model": pick(rng, 50_000, a=0.5, b=0.5)}))
    (cause,) = found.causes
    is_large, slow = size == "1048576", latency > found.threshold
    now, without = np.quantile(latency, 0.99), np.quantile(latency[~is_large], 0.99)

    assert (cause.requests, cause.slow, found.slow) == (is_large.sum(), (is_large & slow).sum(), slow.sum())
    assert cause.share_slow == pytest.approx((is_large & slow).sum() / slow.sum())
    assert cause.lift == pytest.approx(cause.share_slow / is_large.mean())
    assert cause.without_ms == pytest.approx(1e3 * without, rel=0.05)
    assert cause.with_ms == pytest.approx(1e3 * np.quantile(latency[is_large], 0.99), rel=0.05)
    assert now == pytest.approx(0.9, rel=0.05)
    assert found.sentence == (
        "Requests with a request size of 1-4 MB are 5.9 % of all and 100 % of the slow ones; "
        "without them p99 would be 260 ms instead of 890 ms."
    )


def test_a_value_that_contains_the_cause_comes_later() -> None:
    rng, latency = noise(4, 20_000)
    size = pick(rng, 20_000, **{"4096": 0.95, "1048576": 0.05})
    tenant = np.where(size == "1048576", "acme", pick(rng, 20_000, acme=0.1, globex=0.9))
    latency[size == "1048576"] *= 8
    first, second = find_causes(counts_of(latency, {"tenant": tenant, "request_size": size})).causes

    assert (first.label, first.same_as) == ("request size 1-4 MB", "")
    assert (second.label, second.same_as) == ("tenant acme", first.label)


def test_two_causes_are_both_named() -> None:
    rng, latency = noise(5, 20_000)
    tenant, replica = pick(rng, 20_000, acme=0.05, globex=0.95), pick(rng, 20_000, a=0.06, b=0.94)
    latency[(tenant == "acme") | (replica == "a")] *= 8
    found = find_causes(counts_of(latency, {"tenant": tenant, "replica": replica}))

    assert {(each.label, each.same_as) for each in found.causes} == {("tenant acme", ""), ("replica a", "")}


def test_a_period_is_named_if_nothing_else_explains_it() -> None:
    rng, latency = noise(6, 20_000)
    at = rng.integers(0, STEPS, 20_000)
    latency[(at >= 20) & (at < 30)] *= 5
    (found,) = find_causes(counts_of(latency, {"tenant": pick(rng, 20_000, a=0.5, b=0.5)}, at)).causes

    assert (found.key, found.values) == (WHEN, (str(START + 20 * STEP), str(START + 30 * STEP)))
    assert found.phrase == "Requests from 11:27 to 11:37 UTC"
    assert found.share_all == pytest.approx(1 / 6, abs=0.01)


def test_a_release_is_named_instead_of_its_time() -> None:
    rng, latency = noise(17, 20_000)
    at = rng.integers(0, STEPS, 20_000)
    version = np.where(at >= 40, "2", "1")
    latency[(version == "2") & (rng.random(20_000) < 0.1)] *= 8
    found = find_causes(counts_of(latency, {"tenant": pick(rng, 20_000, a=0.5, b=0.5), "version": version}, at))

    assert [each.label for each in found.causes] == ["version 2"]
    assert "version" not in found.compared


def test_a_cause_of_some_minutes_is_no_period() -> None:
    rng, latency = noise(7, 20_000)
    at, replica = rng.integers(0, STEPS, 20_000), pick(rng, 20_000, a=0.1, b=0.9)
    latency[(at >= 40) & (replica == "a")] *= 8

    assert [each.label for each in find_causes(counts_of(latency, {"replica": replica}, at)).causes] == ["replica a"]


def test_a_value_that_is_frequent_while_everything_is_slow_is_not_named() -> None:
    rng, latency = noise(8, 20_000)
    at = rng.integers(0, STEPS, 20_000)
    is_slow = (at >= 20) & (at < 30)
    tenant = np.where(rng.random(20_000) < np.where(is_slow, 0.8, 0.02), "acme", "globex")
    latency[is_slow] *= 8

    assert [each.key for each in find_causes(counts_of(latency, {"tenant": tenant}, at)).causes] == [WHEN]


def test_a_service_that_is_minutes_old_has_causes() -> None:
    rng, latency = noise(16, 10_000)
    tenant = pick(rng, 10_000, acme=0.05, globex=0.95)
    latency[tenant == "acme"] *= 8
    at = rng.choice([40, 41, 42], 10_000, p=[0.2, 0.5, 0.3])

    assert find_causes(counts_of(latency, {"tenant": tenant}, at)).causes[0].label == "tenant acme"


def test_one_burst_is_no_cause() -> None:
    rng, latency = noise(9, 6000)
    at, tenant = rng.integers(0, STEPS, 6000), pick(rng, 6000, acme=0.1, globex=0.9)
    latency[(at == 20) & (tenant == "acme")] *= 50

    assert find_causes(counts_of(latency, {"tenant": tenant}, at)).causes == ()


def test_nothing_is_named_without_a_cause() -> None:
    rng, latency = noise(10, 20_000)
    values = {key: pick(rng, 20_000, a=0.1, b=0.9) for key in ("tenant", "model")}
    found = find_causes(counts_of(latency, {**values, "route": pick(rng, 20_000, a=1.0)}))

    assert (found.causes, found.compared) == ((), ("tenant", "model"))
    assert found.sentence == "No attribute explains the slow requests."


def test_no_requests_no_result() -> None:
    for requests in ({}, {"tenant": {}}, {"tenant": {"a": np.zeros((1, 1), np.int64)}}):
        found = find_causes(AttributeCounts(SCALE, np.arange(1), np.array([START]), requests))
        assert (found.requests, found.causes, found.sentence) == (0, (), "")


def test_few_requests_have_a_lower_percentile() -> None:
    assert [highest_percentile(number, 0.999) for number in (100_000, 5000, 1000, 400)] == [0.999, 0.99, 0.95, 0.9]


def test_selected_requests_are_compared_with_all_others() -> None:
    rng, latency = noise(11, 20_000)
    at, tenant = rng.integers(0, STEPS, 20_000), pick(rng, 20_000, acme=0.1, globex=0.9)
    latency[(at >= 20) & (at < 24) & (tenant == "acme")] = 0.6
    counts = counts_of(latency, {"tenant": tenant}, at)
    found = find_causes(counts, SlowRequests(0.5, 0.8, START + 20 * STEP, START + 24 * STEP))

    assert [each.label for each in found.causes] == ["tenant acme"]
    assert found.sentence.endswith("% of the selected ones.")
    assert find_causes(counts, SlowRequests(100, 200, START, START + STEP)).causes == ()


def test_selected_minutes_are_compared_with_the_other_minutes() -> None:
    rng, latency = noise(12, 20_000)
    at = rng.integers(0, STEPS, 20_000)
    tenant = np.where(rng.random(20_000) < np.where((at >= 20) & (at < 25), 0.6, 0.05), "acme", "globex")
    counts = counts_of(latency, {"tenant": tenant}, at)
    found = find_causes(counts, SlowRequests(0, 1e9, START + 20 * STEP, START + 25 * STEP))

    assert [each.label for each in found.causes] == ["tenant acme"]


@given(order=st.permutations(range(4)), seed=st.integers(0, 3))
def test_the_order_of_values_does_not_matter(order: list[int], seed: int) -> None:
    rng, latency = noise(seed, 4000)
    tenant = rng.choice(list("abcd"), 4000, p=[0.1, 0.2, 0.3, 0.4])
    latency[tenant == "a"] *= 6
    counts = counts_of(latency, {"tenant": tenant})
    values = list(counts.requests["tenant"].items())
    mixed = AttributeCounts(SCALE, counts.index, counts.starts, {"tenant": dict(values[each] for each in order)})

    assert find_causes(mixed) == find_causes(counts)


def test_steps_without_slow_requests_may_be_combined() -> None:
    rng, latency = noise(13, 20_000)
    at, tenant = rng.integers(0, 30, 20_000), pick(rng, 20_000, acme=0.1, globex=0.9)
    latency[(at < 20) & (tenant == "acme")] *= 20
    latency[at >= 20] = FAST
    apart = find_causes(counts_of(latency, {"tenant": tenant}, at)).causes
    combined = find_causes(counts_of(latency, {"tenant": tenant}, np.minimum(at, 25))).causes

    assert apart == combined
    assert len(apart) == 1


@settings(max_examples=50)
@given(
    table=arrays(np.int64, (3, 4, 5), elements=st.integers(0, 50)),
    percentile=st.sampled_from([0.0, 0.5, 0.95, 0.999, 1.0]),
    numbers=st.booleans(),
)
def test_any_counts_have_a_result(table: Ints, percentile: float, numbers: bool) -> None:
    key, names = ("request_size", ("0", "64", "")) if numbers else ("tenant", ("a", "", "__other__"))
    counts = AttributeCounts(
        SCALE, np.arange(5), START + STEP * np.arange(4), {key: dict(zip(names, table, strict=True))}
    )
    for slow in (percentile, SlowRequests(1.1, 1.5, START, START + 90)):
        for cause in find_causes(counts, slow).causes:
            assert 0 < cause.share_all < 1
            assert cause.share_all < cause.share_slow <= 1


def test_the_probability_without_a_cause_is_a_bound() -> None:
    rng = np.random.default_rng(14)
    for share in (0.01, 0.1, 0.5, 0.9):
        requests = rng.binomial(20, share, (500, STEPS))
        slow = rng.binomial(requests, 0.03)
        others, others_slow = 20 - requests, rng.binomial(20 - requests, 0.03)
        exceeded = 0
        for n, k, m, other in zip(requests, slow, others, others_slow, strict=True):
            with np.errstate(divide="ignore", invalid="ignore"):
                scores = score_sets(np.array([[True, False]]), np.stack([n, m]), np.stack([k, other]))
            exceeded += bool(scores.score[0] >= np.log(20))
        assert exceeded <= 0.05 * 500
