"""Quantiles from the store equal those of one histogram, and are close to the samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import reduce
from random import Random

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from stagelens.core.histogram import SCALE, Estimate, Histogram
from stagelens.store import Retention, Selection
from tests.store.latency_shapes import SHAPES
from tests.support.raw_requests import NOON, NS, OpenSite, Request, Series, Site

HOUR = 3600
START, END = NOON - 3 * HOUR, NOON
SERIES = (
    Series("shop", "1"),
    Series("shop", "2"),
    Series("shop", "2", device="cuda:1"),
    Series("shop", "2", status="error"),
)
# The finest tier that remains a day after the requests.
RETENTIONS = {
    10: Retention(seconds_10=timedelta(days=3)),
    60: Retention(seconds_10=timedelta(0)),
    3600: Retention(seconds_10=timedelta(0), minutes=timedelta(0)),
}


@dataclass(frozen=True)
class Delivery:
    """Batch of requests, with histograms of one scale."""

    requests: list[Request]
    scale: int
    wait: int  # Time until the next batch, with maintenance only after a wait; later data are late. [seconds]


@st.composite
def deliveries(draw: st.DrawFn) -> list[Delivery]:
    random = Random(draw(st.integers(0, 2**32)))
    shape = draw(st.sampled_from(SHAPES))
    samples = shape.samples(draw(st.integers(1, 150)), random.getrandbits(32))
    waits = st.one_of(st.just(0), st.integers(1, 4 * HOUR))
    batches = draw(st.lists(st.tuples(st.sampled_from((5, 5, 5, 3)), waits), min_size=1, max_size=4))
    requests = [_request(random, ns) for ns in samples]
    dealt = [random.randrange(len(batches)) for _ in requests]
    return [
        Delivery([request for request, place in zip(requests, dealt, strict=True) if place == each], *batch)
        for each, batch in enumerate(batches)
    ]


def _request(random: Random, ns: int) -> Request:
    forward = random.randint(0, ns)
    # Half of the requests are in a few steps, so that steps have more than one.
    at = random.choice((random.randrange(START, END), START + 10 * random.randrange(3)))
    return Request({"forward": forward, "queue": ns - forward}, at, random.choice(SERIES))


def deliver(one: Site, batches: Sequence[Delivery]) -> None:
    for batch in batches:
        one.write(batch.requests, scale=batch.scale)
        if batch.wait:
            one.clock.now += batch.wait
            one.store.maintain()
    one.clock.now += 86_400 + 2 * HOUR
    one.store.maintain()


def recorded(
    batches: Sequence[Delivery], chosen: Callable[[Request], bool] = lambda _: True, stage: str | None = None
) -> Histogram:
    found = [(request, batch.scale) for batch in batches for request in batch.requests if chosen(request)]
    histogram = Histogram(min((scale for _, scale in found), default=SCALE))
    for request, _ in found:
        histogram.record(request.seconds if stage is None else request.stages_ns[stage] / NS)
    return histogram


def counted(histogram: Histogram) -> tuple[int, int, dict[int, int]]:
    return histogram.scale, histogram.zero, histogram.buckets


def merged(histograms: Iterable[Histogram]) -> Histogram:
    def add(total: Histogram, each: Histogram) -> Histogram:
        total.merge(each)
        return total

    return reduce(add, histograms, Histogram())


def quantile_estimates(histogram: Histogram, quantiles: Sequence[float]) -> list[Estimate | None]:
    return [histogram.quantile(quantile) for quantile in quantiles]


def shown(one: Site, window: Selection, quantiles: Sequence[float]) -> list[Estimate | None]:
    found = one.store.read.breakdown(window, quantiles)[["value_seconds", "low_seconds", "high_seconds"]]
    return [Estimate(*row) for row in found.to_numpy().tolist()]


# Seeded random data do not become simpler, so shrinking is disabled.
EXAMPLES = settings(
    max_examples=4,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow],
)
SOME_QUANTILES = st.lists(
    st.integers(0, 100_000).map(lambda share: share / 100_000), min_size=1, max_size=5, unique=True
)


@EXAMPLES
@given(
    tier=st.sampled_from(list(RETENTIONS)),
    batches=deliveries(),
    cut=st.integers(1, 3 * HOUR // 10 - 1),
    quantiles=SOME_QUANTILES,
)
def test_every_quantile_equals_that_of_one_histogram(
    open_sqlite: OpenSite, tier: int, batches: list[Delivery], cut: int, quantiles: list[float]
) -> None:
    one = open_sqlite(retention=RETENTIONS[tier])
    deliver(one, batches)
    whole, second = one.between(START, END), one.between(START, END, version="2")
    middle = START + max(10, tier) * (10 * cut // max(10, tier))
    parts = [one.store.read.latency(one.between(*ends)) for ends in ((START, middle), (middle, END))]

    assert counted(one.store.read.latency(whole)) == counted(merged(parts)) == counted(recorded(batches))
    assert shown(one, whole, quantiles) == quantile_estimates(recorded(batches), quantiles)
    of_second = recorded(batches, lambda request: request.series.version == "2")
    assert counted(one.store.read.latency(second)) == counted(of_second)
    for stage, histogram in one.store.read.stage_latency(whole).items():
        assert quantile_estimates(histogram, quantiles) == quantile_estimates(recorded(batches, stage=stage), quantiles)


@EXAMPLES
@given(
    tier=st.sampled_from(list(RETENTIONS)),
    batches=deliveries(),
    quantiles=SOME_QUANTILES,
    step=st.sampled_from((10, 30, 60, 300, HOUR)),
)
def test_every_step_equals_that_of_one_histogram(
    open_sqlite: OpenSite, tier: int, batches: list[Delivery], quantiles: list[float], step: int
) -> None:
    one = open_sqlite(retention=RETENTIONS[tier])
    deliver(one, batches)
    found = one.store.read.quantiles_over_time(one.between(START, END), quantiles, timedelta(seconds=step))
    width = found.attrs["step_seconds"]

    assert width == max(step, tier)
    starts = sorted({request.at - request.at % width for batch in batches for request in batch.requests})
    assert [moment.timestamp() for moment in found["at"]] == starts
    for row, start in zip(found.itertuples(index=False, name=None), starts, strict=True):
        inside = recorded(batches, lambda request, start=start: start <= request.at < start + width)
        assert list(row[1:]) == [
            inside.count,
            *(estimate.value for estimate in quantile_estimates(inside, quantiles) if estimate),
        ]
