"""The tokens page in Chromium: hover texts, and a control that redraws one of its charts."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.dashboard.tabs import SOON, Visit, hover

pytestmark = pytest.mark.stacks

PAGE = "/s/chat-llm/tokens"


def test_hovering_shows_the_stages_before_the_first_token(visit: Visit) -> None:
    page = visit.go(PAGE)
    box = page.locator("[data-chart=first-token] .hovertext").first
    pattern = re.compile(r"p9[\d.]+ \d.*n \d.*(Queue|Prefill)", re.DOTALL)
    hover(page, "first-token", 0.65, lambda: expect(box).to_contain_text(pattern, timeout=SOON))

    assert page.locator(".cursor:not([hidden])").count() == 0


def test_the_breakdown_percentile_control_redraws_the_chart(visit: Visit) -> None:
    page = visit.go(PAGE)
    page.locator("[data-chart=over]").scroll_into_view_if_needed()
    page.get_by_role("group", name="Percentile", exact=True).get_by_role("button", name="p50").click()
    page.wait_for_url(re.compile(r"[?&]t=50"))

    expect(page.locator(".card", has_text="Breakdown over time").locator(".sub").first).to_contain_text("p50 of each")
