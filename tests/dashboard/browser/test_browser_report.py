"""In Chromium: a report opens offline, signing in and out, and what other sites cannot do."""

from __future__ import annotations

import http.server
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from stagelens.dashboard.web.users import add_user
from stagelens.store import Store
from tests.dashboard.tabs import DESKTOP, PHONE, SOON, OpenTab, Serve, hover, screenshot, serious_violations

pytestmark = pytest.mark.stacks

PASSWORD = "tr0ub4dor and 3"  # noqa: S105 - the secret of this test


@pytest.fixture
def saved(browser: Browser, base: str, tmp_path: Path) -> Path:
    context = browser.new_context(timezone_id="UTC", viewport=DESKTOP)
    page = context.new_page()
    page.goto(f"{base}/s/vision-api")
    page.wait_for_selector("#root [data-title]")
    with page.expect_download() as download:
        page.locator(".top [data-do=save]").click()
    path = tmp_path / "report.html"
    download.value.save_as(path)
    context.close()
    return path


def test_an_option_is_copied_from_a_report(browser: Browser, saved: Path) -> None:
    context = browser.new_context(viewport=DESKTOP)
    page = context.new_page()
    page.goto(saved.as_uri())
    chosen = []
    for allowed in (True, False):
        written = (
            "void (navigator.clipboard.writeText = async (text) => { window.copied = text; if (!%s) throw text; })"
        )
        page.evaluate(written % str(allowed).lower())
        page.locator("[data-copies]").first.click()
        chosen.append(page.evaluate("[window.copied, getSelection().toString().trim()]"))
    context.close()

    assert chosen[0] == ["--stage preprocess=serve:resize", ""]
    assert chosen[1] == ["--stage preprocess=serve:resize"] * 2


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_report_opens_offline(browser: Browser, saved: Path, theme: Any) -> None:
    context = browser.new_context(viewport=DESKTOP, color_scheme=theme, reduced_motion="reduce")
    context.set_offline(True)
    page = context.new_page()
    trouble: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: trouble.append(message.text))
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(saved.as_uri())
    screenshot(page, f"report-{theme}")
    complaints = serious_violations(page)
    before = page.locator("[data-total]").inner_text()
    hover(page, "percentile", 0.2, lambda: expect(page.locator("[data-total]")).not_to_have_text(before, timeout=SOON))
    page.locator("[data-chart=percentile]").press("ArrowLeft")
    expect(page.get_by_role("status")).to_contain_text("Preprocess")
    page.set_viewport_size(PHONE)
    width = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    page.click("[data-theme-switch]")
    other = page.evaluate("document.documentElement.dataset.theme")
    context.close()

    assert trouble == []
    assert asked == [saved.as_uri()]
    assert complaints == []
    assert width[0] <= width[1]
    assert other == ("light" if theme == "dark" else "dark")


@pytest.fixture
def guarded(serve: Serve, filled: Store, tmp_path: Path) -> str:
    add_user(tmp_path / "users.txt", "ada", PASSWORD)
    return serve(filled, clock=time.time, users=tmp_path / "users.txt")


def test_signing_in_and_out(browser: Browser, guarded: str) -> None:
    context = browser.new_context(viewport=DESKTOP)
    page = context.new_page()
    page.goto(f"{guarded}/slo")
    complaints = serious_violations(page)
    page.fill("input[name=name]", "ada")
    page.fill("input[name=secret]", "wrong")
    page.click("button")
    refused = page.locator("[role=alert]").inner_text()
    page.fill("input[name=name]", "ada")
    page.fill("input[name=secret]", PASSWORD)
    page.click("button")
    page.wait_for_selector("#root [data-title]")
    arrived = page.url
    page.click("#side [data-signout]")
    page.wait_for_url(f"{guarded}/signin")
    after = page.goto(f"{guarded}/slo")
    context.close()

    assert complaints == []
    assert "Wrong name or password" in refused
    assert arrived == f"{guarded}/slo"
    assert after is not None
    assert after.status == 401


PRESS = """() => {
  window.stayed = true;
  const button = document.createElement("button");
  button.dataset.post = JSON.stringify({ text: "a note from a button" });
  document.querySelector("header").append(button);
  button.click();
}"""
POST = """async (address) => {
  const headers = { "Content-Type": "application/json", "X-CSRF-Token": "x" };
  const results = [];
  for (const options of [{ headers }, { mode: "no-cors" }]) {
    try {
      const answer = await fetch(address, { method: "POST", body: '{"text":"hello"}', credentials: "include", ...options });
      results.push(answer.status);
    } catch (_) {
      results.push("blocked");
    }
  }
  return results;
}"""


@pytest.fixture
def elsewhere() -> Iterator[int]:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name it has there
            """Log nothing."""

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>elsewhere</title>")

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


def test_another_site_can_neither_write_nor_read(browser: Browser, base: str, filled: Store, elsewhere: int) -> None:
    before = filled.read.revision()
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"http://127.0.0.1:{elsewhere}/")
    written = page.evaluate(POST, f"{base}/api/v1/events")
    read = page.evaluate("address => fetch(address).then(() => 'read', () => 'blocked')", f"{base}/api/v1/names")
    context.close()

    assert written == ["blocked", "blocked"]
    assert read == "blocked"
    assert filled.read.revision() == before


def test_dns_rebinding_is_refused(browser: Browser, base: str) -> None:
    # As a proxy the dashboard is sent what was meant for any name.
    context = browser.new_context(proxy={"server": base})
    page = context.new_page()
    responses = [
        page.goto(f"http://rebound.example{path}") for path in ("/", "/api/v1/names", "/report?path=/", "/healthz")
    ]
    codes = [response.status for response in responses if response]
    context.close()

    assert codes == [421] * 4


def test_a_button_records_an_event_on_the_server(open_tab: OpenTab, serve: Serve, tmp_path: Path) -> None:
    store = Store.open(f"sqlite:///{tmp_path / 'own.db'}")
    visit = open_tab(serve(store, clock=time.time))
    page = visit.go("/events")
    with page.expect_response(lambda response: "/parts?" in response.url and "seen=" in response.url):
        page.evaluate(PRESS)
    stayed = page.evaluate("window.stayed")
    stored = store.read.events(datetime.now(UTC) - timedelta(hours=1), datetime.now(UTC) + timedelta(hours=1))
    store.close()

    assert stayed
    assert stored["text"].tolist() == ["a note from a button"]
    assert visit.trouble == []
