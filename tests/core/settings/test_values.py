"""Parsing of durations and sizes in settings, and errors for invalid values."""

from __future__ import annotations

from datetime import timedelta

import pytest

from stagelens.core.errors import ConfigError
from stagelens.core.settings.values import parse_duration, parse_size


def test_durations_and_sizes_are_parsed_with_units() -> None:
    seconds = {"250ms": 0.25, "1.5 s": 1.5, "5m": 300, "30d": 30 * 86_400}
    sizes = {"16MiB": 16 * 1024**2, "1 kB": 1000}

    assert {text: parse_duration(text, "window") / timedelta(seconds=1) for text in seconds} == seconds
    assert {text: parse_size(text, "limit") for text in sizes} == sizes


@pytest.mark.parametrize("text", ["", "30", "-5s", "5 parsecs", "nan s", "1e3s", "9999999999d", f"{'9' * 400}s"])
def test_an_invalid_duration_or_size_names_key_value_and_fix(text: str) -> None:
    with pytest.raises(ConfigError, match=r"window is .*; write a number and a unit .* such as"):
        parse_duration(text, "window")
    with pytest.raises(ConfigError, match=r"limit is '.*'; write a number and a unit"):
        parse_size(text.replace("s", "MiB"), "limit")
