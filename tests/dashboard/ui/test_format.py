"""Numbers read the same wherever they stand."""

from __future__ import annotations

import math
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagelens.alerts import formatting
from stagelens.dashboard.ui import format as numbers


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0000015, "1.50\u202fµs"),
        (0.0000402, "40.2\u202fµs"),
        (0.000649, "649\u202fµs"),
        (0.0009996, "1.00\u202fms"),
        (0.0402, "40.2\u202fms"),
        (0.2191, "219\u202fms"),
        (0.9996, "1.00\u202fs"),
        (8.184, "8.18\u202fs"),
        (59.99, "1\u202fm"),
        (72, "1\u202fm\u00a012\u202fs"),
        (-0.0043, "\u22124.30\u202fms"),
        (0.0, "0\u202fms"),
        (math.nan, "\u2013"),
    ],
)
def test_a_duration_has_three_digits_and_the_unit_of_its_size(seconds: float, text: str) -> None:
    assert numbers.duration(seconds) == text


@given(st.floats(min_value=1e-6, max_value=59, allow_nan=False))
def test_a_duration_reads_back_within_its_digits(seconds: float) -> None:
    number, unit = numbers.split_duration(seconds)
    value = float(number) * {"µs": 1e-6, "ms": 1e-3, "s": 1.0}[unit]

    assert value == pytest.approx(seconds, rel=0.0051)


def test_counts_changes_and_shares_have_few_digits() -> None:
    counts = {8_840_000: "8.84M", 1580: "1.58k", 999.6: "1.00k", 392: "392", 0.25: "0.25", 0: "0", None: "\u2013"}
    changes = {0.83: "▲\u202f83\u202f%", -0.2: "▼\u202f20\u202f%", 0.019: "±\u202f2\u202f%", None: "\u2013"}

    assert {value: numbers.count(value) for value in counts} == counts
    # A small change is neither up nor down.
    assert {ratio: numbers.change(ratio) for ratio in changes} == changes
    # An attained share is never rounded up to its target.
    assert numbers.attained(0.999951) == "99.99\u202f%"
    assert numbers.attained(0.999949, 0.99995) == "99.994\u202f%"
    assert numbers.attained(0.9999, 0.999) == "99.99\u202f%"


@given(st.floats(min_value=0, max_value=1))
def test_a_rank_is_never_rounded_up(quantile: float) -> None:
    shown = float(numbers.rank(quantile).removeprefix("p"))

    assert shown / 100 <= quantile + 1e-9


def test_a_time_span_has_at_most_two_units() -> None:
    assert numbers.span(timedelta(days=1, hours=2, minutes=3, seconds=4)) == "1\u202fd\u00a02\u202fh"


@pytest.mark.parametrize("seconds", [1e-18, -1e-18, 4.9e-9, -4.9e-9, 0.0])
def test_a_time_that_is_rounded_to_zero_has_no_sign_and_no_unit_of_its_own(seconds: float) -> None:
    assert numbers.duration(seconds) == numbers.duration(seconds, sign=True) == f"0{numbers.THIN}ms"
    assert formatting.latency(seconds, signed=True) == "0 ms"


def test_a_change_that_is_rounded_to_zero_has_no_sign() -> None:
    texts = [numbers.percent(-0.001), numbers.signed_change(0.001), numbers.signed_change(-0.001), numbers.count(-0.0)]

    assert texts == [f"0{numbers.THIN}%"] * 3 + ["0"]


def test_a_factor_of_nearly_nothing_is_capped() -> None:
    assert numbers.change(155_323.0) == f"▲{numbers.THIN}> 100{numbers.TIMES}"
    assert numbers.signed_change(155_323.0) == f"> 100{numbers.TIMES}"
