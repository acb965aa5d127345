"""Appearance of messages in Slack and in mail programs, on a wide screen and on a phone."""

from __future__ import annotations

import base64
import math
from dataclasses import replace

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser

from stagelens.alerts.delivery import chart
from stagelens.alerts.delivery.channels import email
from stagelens.alerts.delivery.channels.slack import blocks
from stagelens.alerts.delivery.message import Finding, LatencyRegression, Message, Trend
from tests.alerts.blockkit import page as slack_page

pytestmark = pytest.mark.stacks

OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
LONG = "a-service-with-a-very-long-name.that-somebody.chose-when-nobody-looked/" * 3


def pages(message: Message, finding: Finding) -> dict[str, str]:
    values = tuple(None if minute in (7, 8) else 15 + 15 * math.sin(minute / 9) for minute in range(60))
    opened = replace(message, finding=replace(finding, course=Trend(values, 60.0, message.at - 3600)))
    held = replace(opened, sequence=2, transition="acknowledged", acked_by="Ana", also=("shop: p99 is slower",))
    over = replace(opened, sequence=3, transition="resolved", ending="recovered", at=message.at + 840, first=False)
    shift = LatencyRegression(
        0.99, 0.252, 0.312, 1.18, 1.31, 48_210, 1800.0, 9.3, "route /search has 41 % of requests, before 12 %"
    )
    slower = replace(message, finding=replace(finding, kind="tail", burn=None, shift=shift, service=LONG))
    turns = [(blocks.incident_blocks(each, buttons=True, file="F000000000"), False) for each in (opened, held, over)]
    replies = [(blocks.reply_blocks(each), True) for each in (held, over)]
    files = {"F000000000": drawn(opened), "F000000001": drawn(slower)}
    last = [(blocks.incident_blocks(slower, file="F000000001"), False), (blocks.incident_blocks(slower), False)]
    return {
        "slack": slack_page([*turns, *replies, *last], files),
        **{f"mail-{each.transition}": mail(each) for each in (opened, held, over)},
        "mail-long": mail(slower),
        "mail-bars": email.mail_html(opened),
    }


def mail(message: Message) -> str:
    png = chart.message_chart(message)
    return email.mail_html(message, f"data:image/png;base64,{base64.b64encode(png).decode()}" if png else "")


def drawn(message: Message) -> bytes:
    png = chart.message_chart(message)
    assert png is not None
    return png


@pytest.mark.parametrize(("width", "scheme"), [(640, "light"), (390, "dark")])
def test_pages_fit_and_are_accessible(
    browser: Browser, message: Message, finding: Finding, width: int, scheme: str
) -> None:
    wide: list[str] = []
    serious: list[str] = []
    tab = browser.new_page(
        viewport={"width": width, "height": 900}, color_scheme="dark" if scheme == "dark" else "light"
    )
    for name, content in pages(message, finding).items():
        tab.set_content(content)
        if tab.evaluate(OVERFLOW) > 0:
            wide.append(name)
        found = Axe().run(tab).response["violations"]
        serious += [f"{name}: {each['id']}" for each in found if each["impact"] in {"serious", "critical"}]
    tab.close()

    assert wide == []
    assert serious == []
