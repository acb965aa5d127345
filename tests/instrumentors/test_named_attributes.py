"""Attributes that the user names, in the code and by headers."""

from __future__ import annotations

import logging
from typing import Any

import pytest

import stagelens
from stagelens.core.attributes import MAX_NAMED
from stagelens.core.errors import ConfigError
from stagelens.core.text import MAX_TEXT
from stagelens.instrumentors import named_attributes
from stagelens.instrumentors.named_attributes import baggage_member, parse
from stagelens.instrumentors.records import ATTRIBUTE
from stagelens.instrumentors.request_marks import read_marks
from tests.instrumentors.conftest import Finished


@pytest.fixture(autouse=True)
def no_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named_attributes, "_known", {})


class Broken:
    def __str__(self) -> str:
        raise ZeroDivisionError

    def __hash__(self) -> int:
        raise ZeroDivisionError


def recorded(finished: Finished) -> dict[str, Any]:
    return read_marks(finished[0][0]).facts.get(ATTRIBUTE, {})


def test_an_attribute_belongs_to_the_current_request(finished: Finished) -> None:
    stagelens.attribute("before", 1)
    with stagelens.request("outer"):
        stagelens.attribute("Tenant", "first")
        stagelens.attribute("tenant", "acme")
        with stagelens.request("inner"):
            stagelens.attribute("items", 12)
    stagelens.attribute("after", 1)

    assert recorded(finished) == {"tenant": "acme", "items": "12"}


def test_nothing_raises(finished: Finished) -> None:
    """Whatever the name and the value are."""
    with stagelens.request("r"):
        for odd in (None, "", 5, b"x", Broken(), "a b", "ü", "x" * 41, "=", ["list"]):
            stagelens.attribute(odd, "value")  # pyright: ignore[reportArgumentType] - a mistake of the user
        stagelens.attribute("broken", Broken())
        stagelens.attribute("long", "x" * 10_000)

    assert recorded(finished) == {"5": "value", "broken": "", "long": "x" * MAX_TEXT}


def test_a_rejected_name_is_logged_once(finished: Finished, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "stagelens"), stagelens.request("r"):
        for _ in range(2):
            stagelens.attribute("my tenant", 1)
            stagelens.attribute("Route", 1)
            for number in range(MAX_NAMED + 1):
                stagelens.attribute(f"name{number}", 1)

    assert [*recorded(finished)] == [f"name{number}" for number in range(MAX_NAMED)]
    problems = [message.partition(" is not recorded: ")[2] for message in caplog.messages]
    assert problems == [
        "write a name of at most 40 letters, digits, `_`, `.` and `-`",
        "Stagelens uses the name itself",
        "there are 8 attributes already",
    ]


@pytest.mark.parametrize(
    "text",
    [
        *("tenant", "tenant=x-tenant", "tenant=cookie:x", "tenant=header:", "tenant=header:x tenant"),
        *("tenant=baggage:", "route=header:x-route", "my tenant=header:x"),
        ",".join(f"a{number}=header:x" for number in range(MAX_NAMED + 1)),
    ],
)
def test_a_wrong_setting_is_an_error_and_an_empty_one_is_none(text: str) -> None:
    with pytest.raises(ConfigError, match="STAGELENS_ATTRIBUTES has"):
        parse(text)
    assert parse(" , ") == ()


@pytest.mark.parametrize("header", ["", "plan", "plan;a=1", "=x", "plans=1", ",,=,;", "PLAN=1", "%70lan=1"])
def test_baggage_without_the_member_has_no_value(header: str) -> None:
    assert baggage_member(header, "plan") == ""
