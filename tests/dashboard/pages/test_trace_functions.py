"""Functions of one request on its page."""

from __future__ import annotations

from dataclasses import replace

from stagelens.core import names
from stagelens.dashboard.pages.trace import code_card, request_functions
from stagelens.dashboard.ui.page_export import as_html
from stagelens.store import KeptTrace, Series

PLAIN = KeptTrace("a" * 32, "b" * 16, Series("svc"), 0, 200_000_000, "slow", "preprocess", {"preprocess": 180_000_000})


def sampled(*lines: str) -> KeptTrace:
    """A request with samples."""
    return replace(PLAIN, attributes={names.PROFILE: "\n".join(lines)})


def test_invalid_samples_are_left_out() -> None:
    assert request_functions(PLAIN) == []
    assert "no valid samples" in as_html(code_card(sampled("no number", "-4 preprocess;a:b@c.py:1")))


def test_functions_have_the_time_of_their_samples() -> None:
    found = request_functions(
        sampled("160000 preprocess;serve:resize@serve.py:41", "9000 preprocess;serve:load@serve.py:9")
    )
    assert [(each.title, round(each.tail_self_ms)) for each in found] == [
        ("resize (serve.py:41)", 160),
        ("load (serve.py:9)", 9),
    ]


def test_names_are_escaped() -> None:
    shown = code_card(sampled(f"9000 preprocess;serve:<script>{'x' * 300}@<b>.py:1"))
    assert "<script>" not in as_html(shown)
    assert "<b>" not in as_html(shown)
