"""Model run time by batch size."""

from __future__ import annotations

from stagelens.core.histogram import BATCH_SIZES, Histogram
from stagelens.core.names import BATCH_DURATION
from stagelens.core.request_histograms import RequestHistograms
from stagelens.store import Batch, Point, SeriesCaps
from tests.support.raw_requests import NOON, SHOP, OpenSite, Site

SIZES = (1, 2, 3, 4, 30, 100, 1000, 5000)


def points(sizes: tuple[int, ...]) -> list[Point]:
    counts = RequestHistograms()
    for size in sizes:
        counts.add_stream(BATCH_DURATION, BATCH_SIZES.bucket_of(size), 0.001 * size)
    return [Point(SHOP, metric, key, NOON - 600, histogram) for metric, key, histogram in counts.histograms()]


def test_each_size_bucket_has_its_histogram(sqlite: Site) -> None:
    sqlite.store.write([Batch("a", points(SIZES)), Batch("b", points(SIZES))])
    before = sqlite.store.read.batches(sqlite.around())
    sqlite.store.maintain()
    both = Histogram()
    for size in (2, 3):
        both.record(0.001 * size, 2)

    assert list(before) == ["1", "2-3", "4-7", "16-31", "64-127", "512-1023", "1024+"]
    assert (before["2-3"].buckets, before["2-3"].count) == (both.buckets, 4)
    assert sqlite.store.read.batches(sqlite.around()) == before
    assert sqlite.store.read.batches(sqlite.around(service="bank")) == {}


def test_size_buckets_do_not_count_as_custom_stages(open_sqlite: OpenSite) -> None:
    one = open_sqlite(series_caps=SeriesCaps(custom_stages=0))
    one.store.write([Batch("a", points(tuple(2**power for power in range(len(BATCH_SIZES.names)))))])

    assert tuple(one.store.read.batches(one.around())) == BATCH_SIZES.names
