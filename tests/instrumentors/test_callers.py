"""The service that sent a request, in the header `tracestate`."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagelens.instrumentors.callers import caller_of, tracestate

# https://www.w3.org/TR/trace-context/#value
VALUE = re.compile(r"[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]")


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20))
def test_every_name_is_sent_as_a_valid_value(service: str) -> None:
    """And read again, also beside entries of others."""
    header = tracestate(service)

    assert VALUE.fullmatch(header.partition("=")[2])
    assert caller_of(header) == caller_of(f"a=1, {header} ,b=2") == service


def test_a_long_name_is_cut() -> None:
    """Between two characters; a surrogate is no text."""
    header = tracestate("ü" * 200 + "\ud800")

    assert VALUE.fullmatch(header.partition("=")[2])
    assert set(caller_of(header)) == {"ü"}


@pytest.mark.parametrize("header", ["", "stagelens", "x=stagelens=1", "other=1,STAGELENS=x", ",=,"])
def test_other_headers_name_no_caller(header: str) -> None:
    """Only our own entry counts."""
    assert caller_of(header) == ""
