"""The comparison as a person uses it: choosing sides, copying the report, going from a regression to its evidence."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.dashboard.tabs import OVERLAYS, SOON, OpenTab, Visit, hover, screenshot, serious_violations

pytestmark = pytest.mark.stacks


def test_the_keyboard_leads_from_a_regression_to_its_evidence(visit: Visit) -> None:
    page = visit.go("/regressions")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(r"/compare\?svc=vision-api&a=1.0.0&b=2.0.0&p=99"))
    visit.settled()

    expect(page.locator(".verdict .big")).to_contain_text("slower at p99")


def test_both_sides_can_be_chosen(visit: Visit) -> None:
    page = visit.go("/compare?svc=vision-api")
    page.get_by_role("link", name="Swap").click()
    expect(page.locator(".verdict .big")).to_contain_text("faster at p99")
    page.locator(".side-menu summary").first.click()
    page.locator(".side-menu[open] a", has_text="1.0.0").click()
    page.wait_for_url(re.compile("a=1.0.0&b=1.0.0"))
    expect(page.locator(".verdict .big")).to_contain_text("did not change")
    page.locator(".side-menu summary").first.click()
    complaints = serious_violations(page, OVERLAYS)
    page.locator(".side-menu[open] .field input").fill("2026-11-20T11:25/10m")
    page.keyboard.press("Enter")
    expect(page.locator(".side-menu summary").first).to_contain_text("20 Nov")
    page.go_back()

    expect(page.locator(".side-menu summary").first).to_contain_text("1.0.0")
    assert complaints == []


def test_the_report_is_copied_with_a_complete_link(open_tab: OpenTab, base: str) -> None:
    visit = open_tab(base, permissions=["clipboard-read", "clipboard-write"])
    page = visit.go("/compare?svc=vision-api")
    page.get_by_role("button", name="Copy report").click()
    expect(page.locator("#announcement")).to_have_text("Report copied")
    copied = str(page.evaluate("navigator.clipboard.readText()"))

    assert copied.startswith("**vision-api: B is")
    assert f"]({base}/compare?svc=vision-api&a=1.0.0&b=2.0.0&p=99)" in copied
    assert visit.trouble == []


def test_hovering_shows_the_latencies_of_a_percentile(visit: Visit) -> None:
    page = visit.go("/compare?svc=vision-api")
    pattern = re.compile(r"p9[\d.]+ .*A .* to .*B .* to ")
    box = page.locator("[data-chart=both] .hovertext")

    hover(page, "both", 0.6, lambda: expect(box).to_contain_text(pattern, timeout=SOON))


def test_a_dark_page_prints_light(open_tab: OpenTab, base: str) -> None:
    visit = open_tab(base, color_scheme="dark", reduced_motion="reduce")
    page = visit.go("/compare?svc=vision-api")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    page.wait_for_selector("[data-chart=delta][data-drawn=light]")
    hidden = [page.locator(text).first.is_visible() for text in (".side", ".top", ".copies", ".seg", ".tabs")]
    screenshot(page, "compare-print")
    page.emulate_media(media="screen")
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    page.wait_for_selector("[data-chart=delta][data-drawn=dark]")

    assert hidden == [False] * 5
    assert visit.trouble == []
