"""Machine load during slow requests: the arithmetic, and the texts of the page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagelens.core.hardware import (
    CPU,
    CPU_SHARE,
    GPU,
    GPU_MEMORY,
    HOST_CPU,
    THREADS,
    THROTTLED,
    Measure,
    hardware_key,
)
from stagelens.core.histogram import Histogram
from stagelens.core.names import HARDWARE
from stagelens.dashboard.config import DashboardConfig
from stagelens.dashboard.figures.over_time import hardware_figure
from stagelens.dashboard.figures.time_axis import TimeAxis
from stagelens.dashboard.pages.hardware import (
    MIN_STEPS,
    compare_slow_steps,
    line_names,
    mean_utilization,
    odd_one_out,
    utilization,
)
from stagelens.dashboard.source import Source
from stagelens.dashboard.ui.page_export import children, text_of
from stagelens.store import Batch, Point, Series, Store
from tests.dashboard.rendering import shown
from tests.dashboard.served_versions import NOW, Served, write

AT = datetime(2026, 11, 20, 11, tzinfo=UTC)
PAGE = "/s/shop/capacity?from=now-30m"
BAD_MINUTES = range(9, 12)


def frame(*rows: tuple[int, Measure, str, float]) -> pd.DataFrame:
    records = [
        (AT + timedelta(minutes=minute), measure.key, place, value, value) for minute, measure, place, value in rows
    ]
    return pd.DataFrame(records, columns=["at", "measure", "place", "mean", "most"])


def steps(values: Sequence[float], name: str) -> pd.DataFrame:
    return pd.DataFrame({"at": [AT + timedelta(minutes=minute) for minute in range(len(values))], name: values})


@pytest.mark.parametrize(
    ("busy", "black", "grey"),
    [
        ([0.9], ["n/gpu0: 90 % busy"], []),
        ([0.4, 0.9], ["n/gpu1: 90 % busy"], ["n/gpu0: 40 % busy"]),
        ([0.6, 0.62, 0.1, 0.6, 0.61, 0.6, 0.6, 0.6, 0.6], ["n/gpu2: 10 % busy"], ["8 others: 60 % to 62 % busy"]),
        ([0.6, 0.61, 0.62], [], ["3 GPUs: 60 % to 62 % busy"]),
    ],
)
def test_each_line_of_a_device_has_a_name(busy: Sequence[float], black: Sequence[str], grey: Sequence[str]) -> None:
    found = frame(*((minute, GPU, f"n/gpu{number}", each) for minute in range(30) for number, each in enumerate(busy)))
    shares, axis = utilization(found)[1], TimeAxis(AT, AT + timedelta(minutes=30), timedelta(minutes=1), UTC)
    named = odd_one_out(shares)
    figure = hardware_figure(shares, steps([0.1] * 30, "value"), axis, name="GPU", tail_name="p99", named=named)
    colours = [each["line"]["color"] for each in figure["data"][1:]]
    legend = [" ".join(text_of(each).split()) for each in children(line_names(shares, named, "GPU"))]

    assert colours == ["$deco"] * (len(busy) - len(black)) + ["$ink"] * len(black)
    assert legend == [*black, *grey]


def test_gpu_utilization_is_shown_where_there_are_gpus() -> None:
    found = frame((0, GPU, "a/gpu0", 0.9), (1, GPU, "a/gpu0", 0.7), (0, GPU, "b/gpu0", 0.2), (0, CPU_SHARE, "a:1", 1.0))

    assert utilization(found)[0] == "GPU"
    assert mean_utilization(found) == pytest.approx(0.6)


def test_a_mig_slice_without_utilization_is_not_idle() -> None:
    assert mean_utilization(frame((0, GPU_MEMORY, "a/gpu0.1", 5e9), (0, CPU_SHARE, "a:1", 0.4))) is None


def test_the_processes_of_a_machine_share_its_cpus() -> None:
    found = frame(
        (0, CPU_SHARE, "a:1", 0.3), (0, CPU_SHARE, "a:2", 0.3), (0, CPU_SHARE, "b:1", 0.8), (0, CPU_SHARE, "b:2", 0.8)
    )

    assert mean_utilization(found) == pytest.approx((0.6 + 1.0) / 2)


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0.001, 100)), max_size=60))
def test_slow_steps_are_compared_with_the_remaining_steps(samples: list[tuple[float, float]]) -> None:
    shares, tail = [share for share, _ in samples], [value for _, value in samples]
    found = compare_slow_steps(steps(shares, "share"), steps(tail, "value"))

    assert (found is None) == (len(samples) < MIN_STEPS or sum(value > np.quantile(tail, 0.9) for value in tail) == 0)
    if found is not None:
        slow = [share for share, value in samples if value > found.threshold_seconds]
        assert 0 < len(slow) <= len(samples) / 10 + 1
        assert found.slow * len(slow) + found.other * (len(samples) - len(slow)) == pytest.approx(sum(shares))


def machines(store: Store, *, gpu: bool = True, explains: bool = True) -> None:
    points: list[Point] = []
    for seconds in range(0, 1800, 10):
        bad = explains and (seconds // 60) in BAD_MINUTES
        values = {
            (CPU, "web-1:7"): 1.0,
            (CPU_SHARE, "web-1:7"): 0.95 if bad else 0.25,
            (THREADS, "web-1:7"): 12.0,
            (HOST_CPU, "web-1"): 0.5,
            (THROTTLED, "web-1:7"): 0.8 if bad else 0.0,
        }
        if gpu:
            values[GPU, "web-1/gpu0"] = 0.9 if bad else 0.3
        for (measure, place), value in values.items():
            observed = Histogram()
            observed.record(value)
            at = int((NOW - timedelta(minutes=30)).timestamp()) + seconds
            points.append(Point(Series("shop", "1"), HARDWARE, hardware_key(measure.key, place), at, observed))
    store.write([Batch("machines", points)])


@pytest.fixture
def store(traffic: ModuleType, tmp_path: Path) -> Iterator[Store]:
    store = Store.open(f"sqlite:///{tmp_path}/s.db", clock=NOW.timestamp)
    slow = {"forward": 200.0, "overhead": 1.0}
    first, last = BAD_MINUTES[0], BAD_MINUTES[-1] + 1
    write(
        store,
        traffic,
        Served("shop", "1", 30, 30 - first),
        Served("shop", "1", 30 - first, 30 - last, stages=slow),
        Served("shop", "1", 30 - last),
    )
    yield store
    store.close()


@pytest.fixture
def source(store: Store, tmp_path: Path) -> Source:
    (tmp_path / "prices.yaml").write_text("currency: $\nprices: [{service: shop, per_hour: 36}]", encoding="utf-8")
    return Source(store, None, NOW.timestamp, config=DashboardConfig(prices=tmp_path / "prices.yaml"))


def test_the_page_reports_machine_load_during_slow_requests(store: Store, source: Source) -> None:
    machines(store)
    text = shown(source, PAGE)

    assert "In the slowest tenth of the time" in text
    assert "GPUs were 90" in text
    assert "The container was throttled at its CPU limit in 80" in text
    assert "CPUs of the whole machine" not in text
    assert "could not be rendered" not in text


def test_an_equally_busy_machine_explains_nothing(store: Store, source: Source) -> None:
    machines(store, gpu=False, explains=False)
    text = shown(source, PAGE)

    assert "busy, as at other times: their load is not the cause" in text
    assert "pip install '.[gpu]'" in text


def test_request_cost_is_split_by_the_busy_share(store: Store, source: Source) -> None:
    machines(store)
    text = shown(source, PAGE).replace("\u202f", " ")

    assert "GPUs busy 36 % of the time: of $500 per 1 M, $180 is for busy and $320 for idle machines." in text


def test_without_machine_metrics_the_page_explains_how_to_get_them(source: Source) -> None:
    text = shown(source, PAGE)

    assert "No host metrics in this window" in text
    assert "for machines that waited" not in text
