"""Parsing of durations and sizes in settings, and errors for invalid values."""

from __future__ import annotations

from datetime import timedelta

import pytest

from stagelens.core.errors import ConfigError
from stagelens.core.settings.values import parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("250ms", timedelta(milliseconds=250)),
        ("1.5 s", timedelta(seconds=1.5)),
        ("5m", timedelta(minutes=5)),
        ("30d", timedelta(days=30)),
    ],
)
def test_durations_are_parsed_with_units(text: str, expected: timedelta) -> None:
    assert parse_duration(text, "window") == expected


@pytest.mark.parametrize("text", ["", "30", "-5s", "5 parsecs", "nan s", "1e3s", "9999999999d", f"{'9' * 400}s"])
def test_an_invalid_duration_names_key_value_and_fix(text: str) -> None:
    with pytest.raises(ConfigError, match=r"window is .*; write a number and a unit .* such as"):
        parse_duration(text, "window")


def test_sizes_are_parsed_in_decimal_and_binary_units() -> None:
    assert (parse_size("16MiB", "limit"), parse_size("1 kB", "limit")) == (16 * 1024**2, 1000)


def test_an_invalid_size_names_key_value_and_fix() -> None:
    with pytest.raises(ConfigError, match=r"limit is '16'; write a number and a unit"):
        parse_size("16", "limit")
    with pytest.raises(ConfigError, match=r"limit is '9+MiB'; write a number and a unit"):
        parse_size(f"{'9' * 400}MiB", "limit")
