"""Machine load during slow requests: the arithmetic, and the texts of the page."""

from __future__ import annotations

from collections.abc import Sequence
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
from stagelens.core.names import HARDWARE
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
from tests.dashboard.rendering import check_views, observed, source_of
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
    colours = [datum["line"]["color"] for datum in figure["data"][1:]]
    legend = [" ".join(text_of(child).split()) for child in children(line_names(shares, named, "GPU"))]

    assert colours == ["$deco"] * (len(busy) - len(black)) + ["$ink"] * len(black)
    assert legend == [*black, *grey]


def test_utilization_is_that_of_gpus_or_of_the_processes_of_a_machine() -> None:
    gpus = frame((0, GPU, "a/gpu0", 0.9), (1, GPU, "a/gpu0", 0.7), (0, GPU, "b/gpu0", 0.2), (0, CPU_SHARE, "a:1", 1.0))
    cpus = frame(
        *((0, CPU_SHARE, f"{host}:{number}", share) for host, share in (("a", 0.3), ("b", 0.8)) for number in "12")
    )

    assert utilization(gpus)[0] == "GPU"
    assert mean_utilization(gpus) == pytest.approx(0.6)
    assert mean_utilization(cpus) == pytest.approx((0.6 + 1.0) / 2)
    # A slice of a GPU without utilization is not idle.
    assert mean_utilization(frame((0, GPU_MEMORY, "a/gpu0.1", 5e9), (0, CPU_SHARE, "a:1", 0.4))) is None


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0.001, 100)), max_size=60))
def test_slow_steps_are_compared_with_the_remaining_steps(samples: list[tuple[float, float]]) -> None:
    shares, tail = [share for share, _ in samples], [value for _, value in samples]
    found = compare_slow_steps(steps(shares, "share"), steps(tail, "value"))

    assert (found is None) == (len(samples) < MIN_STEPS or sum(value > np.quantile(tail, 0.9) for value in tail) == 0)
    if found is not None:
        slow = [share for share, value in samples if value > found.threshold_seconds]
        assert 0 < len(slow) <= len(samples) / 10 + 1
        assert found.slow * len(slow) + found.other * (len(samples) - len(slow)) == pytest.approx(sum(shares))


def machines(store: Store, *, is_cause: bool) -> None:
    """Write the load of one machine; with a GPU if it is the cause of slow requests."""
    points: list[Point] = []
    for seconds in range(0, 1800, 10):
        bad = is_cause and (seconds // 60) in BAD_MINUTES
        values = {
            (CPU, "web-1:7"): 1.0,
            (CPU_SHARE, "web-1:7"): 0.95 if bad else 0.25,
            (THREADS, "web-1:7"): 12.0,
            (HOST_CPU, "web-1"): 0.5,
            (THROTTLED, "web-1:7"): 0.8 if bad else 0.0,
        }
        if is_cause:
            values[GPU, "web-1/gpu0"] = 0.9 if bad else 0.3
        for (measure, place), value in values.items():
            key, at = hardware_key(measure.key, place), int((NOW - timedelta(minutes=30)).timestamp()) + seconds
            points.append(Point(Series("shop", "1"), HARDWARE, key, at, observed(value)))
    store.write([Batch("machines", points)])


@pytest.fixture
def source(traffic: ModuleType, store: Store, tmp_path: Path) -> Source:
    first, last = BAD_MINUTES[0], BAD_MINUTES[-1] + 1
    slow = Served("shop", "1", 30 - first, 30 - last, stages={"forward": 200.0, "overhead": 1.0})
    write(store, traffic, Served("shop", "1", 30, 30 - first), slow, Served("shop", "1", 30 - last))
    return source_of(store, tmp_path, prices="currency: $\nprices: [{service: shop, per_hour: 36}]")


@pytest.mark.parametrize("case", ["explains", "equal", "none"])
def test_the_page_reports_machine_load_during_slow_requests(store: Store, source: Source, case: str) -> None:
    if case != "none":
        machines(store, is_cause=case == "explains")

    check_views(f"hardware_{case}", source, PAGE)
