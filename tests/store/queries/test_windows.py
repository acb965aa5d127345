"""Windows over time: each has the numbers of the queries of its time, whatever the windows overlap and the scales are."""

from __future__ import annotations

import math
from random import Random

import pytest

from stagelens.core.histogram import Histogram, value_at
from stagelens.core.names import REQUEST_DURATION, STAGE_TIME, STATUS_ERROR, STATUS_OK
from stagelens.store import Batch, Point, Selection, Series
from stagelens.store.queries import windows
from stagelens.store.queries.windows import TooManyValuesError, WindowQuery
from tests.support.raw_requests import NOON, Site

START = NOON - 3600
QUANTILES = (0.5, 0.9)
BY = ("service", "version")


def fill(one: Site) -> None:
    random = Random(7)
    for minute in [*range(20), *range(25, 60)]:
        scale = random.choice([5, 5, 5, 3, 1])
        series = Series("shop", random.choice("12"), status=random.choice([STATUS_OK, STATUS_ERROR]))
        points: list[Point] = []
        for stage in ("forward", "queue"):
            counts = Histogram(scale)
            for _ in range(40):
                counts.record(random.choice([0.0, random.uniform(0.01, 9)]))
            spent = Histogram(random.choice([scale, 2]))
            for index, count in counts.buckets.items():
                coarse = index >> max(counts.scale - spent.scale, 0)
                spent.buckets[coarse] = spent.buckets.get(coarse, 0) + count * 1000
            at = START + minute * 60
            points += [Point(series, REQUEST_DURATION, stage, at, counts), Point(series, STAGE_TIME, stage, at, spent)]
        one.store.write([Batch(f"minute-{minute}", points)])


@pytest.mark.parametrize(("seconds", "step"), [(60, 60), (300, 60), (120, 600), (3600, 40), (70, 50)])
def test_each_window_has_the_numbers_of_its_time(sqlite: Site, seconds: int, step: int) -> None:
    fill(sqlite)
    read, ends = sqlite.store.read, range(START, NOON + 600, step)
    latency, stages = (
        read.windows(sqlite.around(), WindowQuery(ends, seconds, 10, BY, measure, QUANTILES)).groups
        for measure in ("latency", "stages")
    )
    rates = read.windows(sqlite.around(), WindowQuery(ends, seconds, 10, BY, "requests")).groups

    assert set(latency) == set(stages) == set(rates) == {("shop", "1"), ("shop", "2")}
    for name in latency:
        for place, end in enumerate(ends):
            about = sqlite.between(end - seconds, end, service="shop", version=name[1])
            counted, failed = read.latency(about), read.latency(with_status(about))
            rate, errors = rates[name]["rate"][0, place], rates[name]["errors"][0, place]
            assert (0 if math.isnan(rate) else round(rate * seconds)) == counted.count
            assert counted.count == 0 or errors * counted.count == pytest.approx(failed.count)
            split = read.breakdown(about, QUANTILES)
            for row, quantile in enumerate(QUANTILES):
                value = latency[name]["latency"][row, place]
                assert (None if math.isnan(value) else value) == value_at(counted, quantile)
                parts = {stage: values[row, place] for stage, values in stages[name].items()}
                known = {stage: each for stage, each in parts.items() if each > 0}
                assert math.isnan(value) or sum(parts.values()) == pytest.approx(value)
                expected = {stage: split[stage].iloc[row] for stage in known}
                assert known == pytest.approx(expected)


def with_status(about: Selection) -> Selection:
    return Selection(about.start, about.end, about.service, about.version, status=STATUS_ERROR)


def test_too_much_is_refused(sqlite: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(sqlite)
    query = WindowQuery(range(START, NOON, 60), 600, 10, BY, "latency", QUANTILES)
    for limit, most in (("MAX_VALUES", 10), ("MAX_VALUES", 200), ("_MAX_CELLS", 1000)):
        with monkeypatch.context() as patch:
            patch.setattr(windows, limit, most)
            with pytest.raises(TooManyValuesError, match="larger step"):
                sqlite.store.read.windows(sqlite.around(), query)
