"""Histograms by attribute: the values of each attribute divide all requests, and their number is limited."""

from __future__ import annotations

from collections import Counter, defaultdict

from hypothesis import given
from hypothesis import strategies as st

from stagelens.core import names
from stagelens.core.attributes import ATTRIBUTE_SCALE, MAX_VALUES, split_attribute_key
from stagelens.core.histogram import Histogram
from stagelens.core.request_histograms import MAX_CELLS, AttributeHistograms, AttributeLimits, RequestHistograms
from stagelens.core.stages import OTHER

ATTRIBUTES = st.dictionaries(
    st.sampled_from(["tenant", "caller", "request_size", "batch_size"]), st.sampled_from(["1", "4", "16"])
)
REQUESTS = st.lists(st.tuples(ATTRIBUTES, st.integers(0, 10**12)), max_size=30)


def taken(histograms: AttributeHistograms) -> dict[str, dict[str, Histogram]]:
    found: defaultdict[str, dict[str, Histogram]] = defaultdict(dict)
    for metric, key, histogram in histograms.take():
        if metric == names.REQUEST_BY_ATTRIBUTE:
            attribute, value = split_attribute_key(key)
            found[attribute][value] = histogram
    return dict(found)


@given(st.lists(REQUESTS, max_size=5))
def test_the_values_of_each_attribute_divide_all_requests(exports: list[list[tuple[dict[str, str], int]]]) -> None:
    histograms = AttributeHistograms(AttributeLimits())
    sent: set[str] = set()
    for requests in exports:
        total = Histogram(ATTRIBUTE_SCALE)
        by_value: Counter[tuple[str, str]] = Counter()
        for values, duration in requests:
            histograms.add(values.items(), duration)
            total.record(duration / 1e9)
            by_value.update((key, values.get(key, "")) for key in ("tenant", "caller", "request_size", "batch_size"))
        found = taken(histograms)
        for attribute, values in found.items():
            merged = Histogram(ATTRIBUTE_SCALE)
            for value, histogram in values.items():
                merged.merge(histogram)

                assert histogram.count == by_value[attribute, value] > 0
            assert (merged.buckets, merged.zero) == (total.buckets, total.zero)
            assert abs(merged.sum - total.sum) <= 1e-9 * total.sum
        if requests:
            assert sent <= found.keys()
        sent |= found.keys()


def add(histograms: AttributeHistograms, **values: str) -> None:
    histograms.add(values.items(), 1_000_000)


def test_an_automatic_attribute_is_sent_from_its_second_value_on() -> None:
    histograms = AttributeHistograms(AttributeLimits())
    add(histograms, request_size="4", tenant="acme")

    assert taken(histograms).keys() == {"tenant"}

    add(histograms, request_size="4", batch_size="1", tenant="acme")

    assert taken(histograms).keys() == {"tenant", "batch_size"}

    add(histograms, request_size="16")

    found = taken(histograms)
    assert {key: [*values] for key, values in found.items()} == {
        "tenant": [""],
        "batch_size": [""],
        "request_size": ["16"],
    }


def test_values_beyond_the_limit_are_counted_together() -> None:
    limits = AttributeLimits()
    shown = [limits.value("tenant", str(number)) for number in range(MAX_VALUES + 2)]

    assert shown == [*map(str, range(MAX_VALUES)), OTHER, OTHER]
    assert limits.value("plan", "1") == "1"


def test_the_values_of_all_series_are_limited() -> None:
    limits = AttributeLimits()
    limits.cells = MAX_CELLS - 1
    histograms = AttributeHistograms(limits)
    for tenant in "abc":
        add(histograms, tenant=tenant)

    assert {value: histogram.count for value, histogram in taken(histograms)["tenant"].items()} == {"a": 1, OTHER: 2}


def test_a_process_has_its_latency_and_its_time_by_stage() -> None:
    histograms, counts = AttributeHistograms(AttributeLimits()), RequestHistograms()

    assert not [*histograms.take()]

    for duration in (3_000_000, 3_100_000, 9_000_000):
        counts.add({"forward": duration - 1_000_000, "overhead": 1_000_000}, duration)
    histograms.merge(counts)
    points = {(metric, key): histogram for metric, key, histogram in histograms.take()}
    requests = points[names.REQUEST_BY_ATTRIBUTE, "replica="]
    forward = points[names.REPLICA_STAGE_TIME, "forward"]

    assert (requests.scale, forward.scale) == (ATTRIBUTE_SCALE, ATTRIBUTE_SCALE)
    assert round(requests.sum, 9) == 0.0151
    assert [*requests.buckets.values()] == [2, 1]
    assert [*forward.buckets.values()] == [4100, 8000]
    assert requests.buckets.keys() == forward.buckets.keys()
    assert not [*histograms.take()]
