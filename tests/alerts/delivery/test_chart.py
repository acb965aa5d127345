"""Chart of an incident: content, gaps, axes and unusual values, and its signed URL."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageChops

from stagelens.alerts.delivery import chart, outbox
from stagelens.alerts.delivery.channels import pagerduty
from stagelens.alerts.delivery.chart import ChartScale
from stagelens.alerts.delivery.message import Finding, Message, Trend
from stagelens.alerts.delivery.message_text import chart_in_words
from stagelens.alerts.schema import keys
from stagelens.store import Store
from tests.alerts.stored import REGRESSION, SLOWER, about, notify_opening


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


LINK = "https://lens.example.com/s/magika-demo?p=99"


@pytest.fixture
def linked(message: Message) -> Message:
    return about(message, link=LINK)


def address_of(store: Store, message: Message) -> str:
    with store.transaction() as connection:
        return chart.chart_url(connection, message)


def is_genuine(store: Store, incident: str, signature: str) -> bool:
    with store.engine.connect() as connection:
        return chart.is_chart_signature(connection, incident, signature)


def signature_in(address: str) -> str:
    return address.rpartition("/")[2].removesuffix(".png")


def test_a_chart_url_is_genuine_under_the_key_of_the_database(store: Store, linked: Message) -> None:
    without_key = is_genuine(store, linked.incident, "")
    with store.engine.connect() as connection:
        assert connection.execute(keys.select()).all() == []
    address, other = address_of(store, linked), address_of(store, replace(linked, incident="sl-other"))
    signature = signature_in(address)

    assert not without_key
    assert address == address_of(store, linked) == f"https://lens.example.com/charts/{linked.incident}/{signature}.png"
    assert is_genuine(store, linked.incident, signature)
    assert not is_genuine(store, "sl-other", signature)
    assert is_genuine(store, "sl-other", signature_in(other))
    with store.transaction() as connection:
        connection.execute(keys.delete())
    assert address_of(store, linked) != address


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50, deadline=None)
@given(incident=st.text(st.characters(codec="utf-8")), signature=st.text())
def test_other_chart_urls_are_refused(store: Store, linked: Message, incident: str, signature: str) -> None:
    address_of(store, linked)

    assert not is_genuine(store, incident, signature)


@pytest.mark.parametrize("link", ["", "http://127.0.0.1:8600/s/x", "https://[x/s/x", "lens.example.com"])
def test_a_dashboard_without_https_has_no_chart_url(store: Store, message: Message, link: str) -> None:
    assert address_of(store, about(message, link=link)) == ""


def test_pagerduty_gets_the_chart_url(store: Store, linked: Message) -> None:
    notify_opening(store, linked.incident, linked.finding, "slo:x", ["pagerduty"])
    with store.transaction() as connection:
        claimed = outbox.claim_message(connection, "pagerduty", "me", linked.at, 60.0)
    assert claimed is not None
    event = pagerduty.event_payload(claimed.message, "K" * 32)
    over = replace(claimed.message, transition="resolved", ending="recovered")

    assert [image["src"] for image in event["images"]] == [address_of(store, linked)]
    assert event["images"][0]["href"] == LINK
    assert "burn rate" in event["images"][0]["alt"]
    assert "images" not in pagerduty.event_payload(over, "K" * 32)
    assert "images" not in pagerduty.event_payload(replace(claimed.message, chart=""), "K" * 32)
