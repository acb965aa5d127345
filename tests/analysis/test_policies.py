"""Policies that come with Stagelens: numbers in a file, their meaning in a dataclass."""

from dataclasses import dataclass
from datetime import timedelta

import pytest

from stagelens.analysis.policies import InMinutes, read_policy_fields
from stagelens.core.errors import ConfigError


@dataclass(frozen=True)
class Window:
    block: InMinutes
    required: tuple[float, ...]


@dataclass(frozen=True)
class Policy:
    at: tuple[float | str, ...]
    windows: tuple[Window, ...]
    first: Window
    silence: timedelta
    patience: InMinutes = 5


WINDOW = {"block": "2h", "required": [7, 5.5]}
RAW = {"at": [0.5, "mean"], "windows": [WINDOW, WINDOW], "first": WINDOW, "silence": "30s"}


def test_a_policy_equals_its_file() -> None:
    window = Window(120, (7, 5.5))

    assert read_policy_fields(Policy, RAW) == Policy((0.5, "mean"), (window, window), window, timedelta(seconds=30), 5)


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        ({**RAW, "patiense": "1m"}, TypeError, "patiense"),
        ({**RAW, "first": {"block": "2h"}}, TypeError, "required"),
        ({**RAW, "patience": "5"}, ConfigError, "patience is '5'"),
    ],
)
def test_a_wrong_key_or_duration_is_an_error(wrong: dict[str, object], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        read_policy_fields(Policy, wrong)
