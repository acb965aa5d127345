"""Chart of an incident: content, gaps, axes and unusual values."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageChops

from stagelens.alerts.delivery import chart
from stagelens.alerts.delivery.chart import ChartScale
from stagelens.alerts.delivery.message import Finding, Message, Trend
from stagelens.alerts.delivery.message_text import chart_in_words
from tests.alerts.stored import REGRESSION, SLOWER, about


def drawn(finding: Finding) -> Image.Image:
    png = chart.draw_chart(finding)
    assert png is not None
    image = Image.open(io.BytesIO(png))
    assert image.format == "PNG"
    return image.convert("RGB")


def changed(finding: Finding, **fields: Any) -> tuple[int, int, int, int] | None:
    difference = ImageChops.difference(drawn(finding), drawn(replace(finding, **fields)))
    # Each image has a palette of a few colours, so small differences of colour are ignored.
    return difference.convert("L").point([0] * 40 + [255] * 216).getbbox()


def test_a_message_has_a_small_sharp_chart(message: Message) -> None:
    png = chart.message_chart(message)
    image = drawn(message.finding)

    assert png == chart.draw_chart(message.finding)
    assert image.size == (2 * chart.WIDTH, 2 * chart.HEIGHT)
    assert image.getpixel((0, 0)) == (255, 255, 255)
    assert len(png or b"") < 40_000


def test_each_value_changes_the_chart_at_its_position(finding: Finding) -> None:
    assert finding.course is not None
    assert finding.burn is not None
    values = (*finding.course.values[:-1], 12.0)
    end = changed(finding, course=replace(finding.course, values=values))
    began = changed(finding, since=finding.since + 300)
    release = changed(finding, version="2026-11-20")

    assert end is not None
    assert end[0] > 840  # at the right: the last value
    assert began is not None
    assert changed(finding, burn=replace(finding.burn, threshold=6.0)) is not None
    assert release is not None
    assert release[3] < 130  # at the top: the labels
    assert changed(finding, severity="ticket") is not None
    assert changed(finding, service="another", description="") is None


def test_a_gap_in_the_data_is_not_drawn(finding: Finding) -> None:
    assert finding.course is not None
    gap = replace(finding.course, values=(*finding.course.values[:5], None, None, None, 29.5))
    image = drawn(replace(finding, course=gap))
    zero = drawn(replace(finding, course=replace(gap, values=tuple(value or 0.0 for value in gap.values))))
    left, top, right, bottom = 780, 140, 880, 340  # within the gap, away from its edges
    seen = [
        {pixel for _, pixel in each.crop((left, top, right, bottom)).getcolors(100_000) or () if is_red(pixel)}
        for each in (image, zero)
    ]

    assert seen[0] == set()
    assert seen[1] != set()


def is_red(pixel: Any) -> bool:
    red, green, blue = pixel
    return red - green > 12 and red - blue > 12


@pytest.mark.parametrize("trend", [None, Trend((), 60.0, 0.0), Trend((None, None), 60.0, 0.0)])
def test_without_values_there_is_no_chart(message: Message, trend: Trend | None) -> None:
    bare = about(message, course=trend)

    assert chart.message_chart(bare) is None
    assert chart_in_words(bare.finding) == ""
    assert chart.message_chart(replace(message, transition="resolved", ending="recovered")) is None


def test_a_latency_regression_chart_shows_usual_latency(finding: Finding) -> None:
    trend = Trend((0.25, 0.252, 0.26, 0.25, 0.3, 0.312), 300.0, finding.since - 1200)
    slower = replace(finding, **SLOWER, course=trend)

    assert drawn(slower) != drawn(replace(slower, shift=replace(REGRESSION, before_seconds=0.1)))
    assert chart_in_words(slower) == (
        "Chart: p99 of the last 30 minutes, up to 312 ms; baseline 252 ms; the problem began at 02:52 UTC on 20 November"
    )


def test_an_undrawable_chart_does_not_stop_the_message(message: Message, caplog: pytest.LogCaptureFixture) -> None:
    assert chart.message_chart(about(message, course=Trend((1.0, math.inf), 60.0, 0.0))) is None
    assert "cannot be drawn" in caplog.text


numbers = st.none() | st.floats(0, 1e9)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30, deadline=None)
@given(values=st.lists(numbers, max_size=70), step=st.floats(1, 1e6), since=st.floats(-1e6, 1e8), version=st.text())
def test_any_time_series_can_be_drawn(
    finding: Finding, values: list[float | None], step: float, since: float, version: str
) -> None:
    trend = Trend(tuple(values), step, 0.0)
    png = chart.draw_chart(replace(finding, course=trend, since=since, version=version))

    assert (png is None) is (trend.highest is None)


@given(highest=st.floats(1e-7, 1e9), length=st.floats(60, 1e8), start=st.floats(0, 4e9))
def test_axes_have_a_few_round_labels(highest: float, length: float, start: float) -> None:
    scale = ChartScale(start, start + length, highest, (0.0, 0.0, 100.0, 100.0))
    levels, moments = scale.levels(), list(scale.moments())

    assert levels[0] == 0
    assert levels[-1] >= highest * (1 - 1e-6)
    assert 2 <= len(levels) <= 6
    assert len(moments) <= 8
    assert all(0 <= scale.x(at) <= 100 for at, _ in moments)
