"""Draw the pictures of the dashboard, of notifications and of the terminal, `docs/images/*.png`, and record their texts.

    python -m docs.screenshots [NAME ...]    # all, or those with these names; `make pictures` draws those of pictures.py too

The data is made up, the same in each run: see tests/docs/pictured_store.py. `docs/images/pictures.json` has the text of each
picture; tests/docs/test_screenshots.py compares it with the text of the same page today.
"""

from __future__ import annotations

import base64
import io
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from playwright.sync_api import Browser, Page, ViewportSize, sync_playwright
from rich.console import Console

from stagelens import __version__
from stagelens.cli.run_output import print_summary, summarize_run
from stagelens.dashboard.config import DashboardConfig
from stagelens.dashboard.source import Source
from stagelens.dashboard.ui.page_export import text_of
from stagelens.dashboard.view import parse
from stagelens.dashboard.web.app import Dashboard
from stagelens.dashboard.web.routing import context_of, page_of
from stagelens.store import Store
from tests.alerts import blockkit
from tests.dashboard.tabs import STANDS, Visit
from tests.docs.pictured_store import NOW, RUN, Pictured, pictured, single_run

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
RECORDED = IMAGES / "pictures.json"
SIZE: ViewportSize = {"width": 1440, "height": 900}
SCALE = 1.25
COLOURS, _FREQUENT = 256, 96
# Values on the settings page that differ between releases and file systems.
_VOLATILE = (
    (re.compile(rf"(?<=Dashboard Version ){re.escape(__version__)}\b"), "…"),
    (re.compile(r"\d[\d.]* [KMG]iB"), "… MiB"),
    (re.compile(r"\d+(?:\.\d+)?k? rows"), "… rows"),
)


@dataclass(frozen=True)
class Shot:
    """A picture of a page of the dashboard.

    Args:
        address: Path and query; `{trace}` and `{incident}` are ids.
        height: Largest height; the picture ends with a card, or with a row of a table. [CSS pixels]
        frame: Whether the picture has the side bar and the header of the dashboard.
        run: Whether the data is the single run of docs/start/fastapi-torch.md instead of the fleet.
        start: Selector of the first element of the picture; empty for the top of the page.
    """

    address: str
    height: int = 1100
    frame: bool = False
    run: bool = False
    start: str = ""


SHOTS: Mapping[str, Shot] = {
    "overview": Shot("/?from=now-1h", 700, frame=True),
    "service": Shot("/s/checkout?from=now-1h", 1120, frame=True),
    "start": Shot("/s/pictures?from=now-5m", 800, run=True, start=".tabs"),
    "compare": Shot("/compare?svc=checkout&a=1.9.0&b=2.0.0&from=now-1h", 1000),
    "slo": Shot("/slo/checkout-latency?from=now-1h", 1250),
    "traces": Shot("/s/checkout/traces?from=now-1h&at=tenant", 760),
    "trace": Shot("/traces/{trace}?from=now-1h", 760),
    "incidents": Shot("/incidents"),
    "incident": Shot("/incidents/{incident}"),
    "advice": Shot("/s/checkout/advice?from=now-1h", 900),
    "events": Shot("/events?from=now-6h"),
    "engines": Shot("/engines?from=now-1h", 1000),
    "regressions": Shot("/regressions"),
    "capacity": Shot("/s/search/capacity?from=now-6h", 1000),
    "replicas": Shot("/s/checkout/replicas?from=now-1h", 700),
    "tokens": Shot("/s/chat/tokens?from=now-1h", 1000),
    "collectors": Shot("/collectors", 640),
    "settings": Shot("/settings"),
}
OTHERS = ("slack", "pagerduty", "terminal")


@contextmanager
def data() -> Generator[tuple[Pictured, Store]]:
    """Fill the fleet's store and the store of the single run, in a temporary folder."""
    with ExitStack() as stack:
        folders = [Path(stack.enter_context(tempfile.TemporaryDirectory())) for _ in range(2)]
        yield stack.enter_context(pictured(folders[0])), stack.enter_context(single_run(folders[1]))


def texts(fleet: Pictured, run: Store) -> dict[str, list[str]]:
    """Return the text of each picture by its name, without volatile values; no browser is needed."""
    sources = {False: fleet.source, True: Source(run, None, NOW.timestamp)}
    found = {name: _page_texts(sources[shot.run], address(shot, fleet)) for name, shot in SHOTS.items()}
    found["slack"] = [_clean(text) for text in _strings(fleet.notified.blocks)]
    found["pagerduty"] = [f"{name}: {value}" for name, value in _facts(fleet.notified.event)]
    found["terminal"] = [line.rstrip() for line in terminal(run).export_text(clear=False).splitlines()]
    return found


def address(shot: Shot, fleet: Pictured) -> str:
    return shot.address.format(trace=fleet.slow_trace, incident=fleet.incident)


def _page_texts(source: Source, where: str) -> list[str]:
    path, _, search = where.partition("?")
    page = page_of(context_of(parse(path, search, NOW), source))
    if page is None:
        msg = f"{where} is not a page"
        raise ValueError(msg)
    return [text for text in (_clean(text_of(each)) for each in page.body) if text]


def _clean(text: str) -> str:
    for pattern, instead in _VOLATILE:
        text = pattern.sub(instead, text)
    return text


def _strings(node: Any) -> list[str]:
    """Return the texts and the alternative texts of Slack's blocks, in their order."""
    if isinstance(node, list):
        return [text for each in node for text in _strings(each)]
    if not isinstance(node, dict):
        return []
    own = [value for key, value in node.items() if key in ("text", "alt_text") and isinstance(value, str)]
    return own + [text for value in node.values() for text in _strings(value)]


def terminal(run: Store) -> Console:
    console = Console(file=io.StringIO(), record=True, width=100, force_terminal=True, color_system="truecolor")
    console.print("[dim]$[/] stagelens run --stage preprocess=serve:prepare -- uvicorn serve:app", highlight=False)
    print_summary(summarize_run(run.read), RUN, console)
    return console


def _facts(event: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return name and value of everything that PagerDuty shows of *event*."""
    payload = event["payload"]
    names = ("summary", "severity", "source", "component", "group", "class", "timestamp")
    found = [(name, str(payload[name])) for name in names if name in payload]
    for name, value in payload["custom_details"].items():
        found.append((name, _lines(value)))
    return found + [("link", link["text"]) for link in event["links"]]


def _lines(value: Any) -> str:
    if isinstance(value, dict):
        return "\n".join(f"{name}: {each}" for name, each in value.items())
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


_PAGERDUTY = """
<!doctype html><html lang="en"><head><meta charset="utf-8"><title>PagerDuty</title><style>
body { margin: 0; background: #fff; font: 14px/1.45 Inter, system-ui, sans-serif; color: #222; }
main { width: 900px; padding: 24px; box-sizing: border-box; }
.top { display: flex; gap: 10px; align-items: center; color: #666; } h1 { font-size: 20px; line-height: 1.3; margin: 10px 0 14px; }
.state { background: #c62d36; color: #fff; border-radius: 4px; padding: 1px 8px; font-weight: 600; }
.urgency { border: 1px solid #c62d36; color: #c62d36; border-radius: 4px; padding: 0 8px; font-weight: 600; }
table { border-collapse: collapse; width: 100%%; } th { text-align: left; font-weight: 600; color: #555; width: 190px; }
th, td { padding: 5px 10px 5px 0; border-top: 1px solid #e7e7e7; vertical-align: top; white-space: pre-line; overflow-wrap: anywhere; }
h2 { font-size: 15px; margin: 18px 0 6px; } .links { display: flex; flex-wrap: wrap; gap: 6px 18px; } a { color: #1264a3; }
</style></head><body><main>
<div class="top"><span class="state">Triggered</span><span class="urgency">High urgency</span><span>%s · via %s · %s</span></div>
<h1>%s</h1><table>%s</table><h2>Details</h2><table>%s</table><h2>Links</h2><div class="links">%s</div></main></body></html>
"""


def pagerduty_page(event: Mapping[str, Any]) -> str:
    """Return *event* as a page similar to an incident in PagerDuty."""
    payload = event["payload"]
    rows = [f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in _facts(event)]
    facts, details = rows[1:6], [row for row in rows[7:] if not row.startswith("<tr><th>link<")]
    links = "".join(f"<a>{escape(link['text'])}</a>" for link in event["links"])
    at = payload["timestamp"][:16].replace("T", " ") + " UTC"
    parts = (payload["source"], event["client"], at, payload["summary"])
    return _PAGERDUTY % (*map(escape, parts), "".join(facts), "".join(details), links)


_TERMINAL = """
<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Terminal</title><style>
body { margin: 0; background: #fff; } main { display: inline-block; background: #14161b; border-radius: 10px; padding: 16px 22px 20px; }
i { display: inline-block; width: 11px; height: 11px; border-radius: 50%%; margin-right: 7px; background: #3a3f4a; }
pre { margin: 12px 0 0; font: 14px/1.4 'DejaVu Sans Mono', Menlo, Consolas, monospace; color: #d5d8de; }
</style></head><body><main><i></i><i></i><i></i><pre>%s</pre></main></body></html>
"""


def terminal_page(console: Console) -> str:
    return _TERMINAL % console.export_html(inline_styles=True, code_format="{code}", clear=False).rstrip()


def draw(names: Sequence[str], folder: Path, fleet: Pictured, run: Store) -> None:
    with ExitStack() as stack:
        browser = stack.enter_context(_browser())
        bases = {False: "", True: ""}
        wanted = {SHOTS[name].run for name in names if name in SHOTS}
        for is_run in wanted:
            shown = (
                Dashboard(DashboardConfig(port=0), run, None, clock=NOW.timestamp)
                if is_run
                else Dashboard(fleet.config, fleet.store, fleet.alerts, clock=NOW.timestamp)
            )
            shown.start()
            stack.callback(shown.stop)
            bases[is_run] = "http://{}:{}".format(*shown.address)
        for name in names:
            if name in SHOTS:
                picture = _dashboard_picture(browser, bases[SHOTS[name].run], address(SHOTS[name], fleet), SHOTS[name])
            else:
                picture = _other_picture(browser, name, fleet, run)
            _write(folder / f"{name}.png", picture)


@contextmanager
def _browser() -> Generator[Browser]:
    path = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), None)
    options = ["--no-sandbox", "--disable-gpu", "--font-render-hinting=none"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=options)
        yield browser
        browser.close()


# Bottoms of the elements after which a picture may end: cards, with a margin, and rows of tables; no other card is cut.
_BOTTOMS = """() => {
  const box = (each) => each.getBoundingClientRect();
  const cards = [...document.querySelectorAll('#root .card')].filter((each) => each.checkVisibility()).map(box);
  const rows = [...document.querySelectorAll('#root .card tr')].filter((each) => each.checkVisibility() && !each.closest('.grid')).map(box);
  const cut = (end) => cards.filter((each) => each.top < end - 1 && each.bottom > end + 1).length;
  return [...cards.map((each) => each.bottom + 14).filter((end) => !cut(end - 14)),
          ...rows.map((each) => each.bottom).filter((end) => cut(end) === 1)];
}"""
_STYLE = "#root { opacity: 1 !important; } ::-webkit-scrollbar { display: none; }"


def _dashboard_picture(browser: Browser, base: str, where: str, shot: Shot) -> bytes:
    context = browser.new_context(
        viewport=SIZE,
        device_scale_factor=SCALE,
        color_scheme="light",
        reduced_motion="reduce",
        timezone_id="UTC",
        locale="en-GB",
    )
    visit = Visit(context.new_page(), base)
    page = visit.go(where)
    whole = int(page.evaluate("document.documentElement.scrollHeight"))
    page.set_viewport_size({"width": SIZE["width"], "height": max(whole, SIZE["height"])})
    page.wait_for_function(f"() => [...document.querySelectorAll('[data-chart]')].every({STANDS})")
    clip = _clip(page, shot)
    if shot.frame:
        # The side bar is as high as the window.
        clip = {"x": 0, "y": 0, "width": SIZE["width"], "height": round(clip["y"] + clip["height"])}
        page.set_viewport_size({"width": SIZE["width"], "height": int(clip["height"])})
        page.wait_for_function(
            f"""() => [...document.querySelectorAll('[data-chart]')].every(
                (slot) => ({STANDS})(slot) || slot.getBoundingClientRect().top > innerHeight)"""
        )
    picture = page.screenshot(animations="disabled", caret="hide", style=_STYLE, clip=clip)  # type: ignore[arg-type]
    context.close()
    return picture


def _clip(page: Page, shot: Shot) -> dict[str, float]:
    """Return the part of the page without side bar and header, down to the last card that fits."""
    box = page.locator("#root").bounding_box()
    if box is None:
        msg = f"{shot.address} has no body"
        raise ValueError(msg)
    first = page.locator(shot.start).first.bounding_box() if shot.start else box
    top = (first or box)["y"] - (12 if shot.start else 0)
    ends = [each for each in page.evaluate(_BOTTOMS) if each - top <= shot.height]
    return {"x": box["x"], "y": top, "width": box["width"], "height": max(ends) - top}


def _other_picture(browser: Browser, name: str, fleet: Pictured, run: Store) -> bytes:
    if name == "slack":
        at = fleet.notified.event["payload"]["timestamp"][11:16]
        content = _with_circles(blockkit.page([(fleet.notified.blocks, False)], fleet.notified.files, at))
    else:
        content = pagerduty_page(fleet.notified.event) if name == "pagerduty" else terminal_page(terminal(run))
    width = {"slack": 720, "pagerduty": 900}.get(name, SIZE["width"])
    page = browser.new_page(viewport={"width": width, "height": 600}, device_scale_factor=SCALE)
    page.set_content(content.replace("<style>", f"<style>{_font()}", 1).replace("Lato", "Inter"))
    page.wait_for_function("() => document.fonts.status === 'loaded'")
    picture = page.locator("body" if name == "slack" else "main").screenshot()
    page.close()
    return picture


def _font() -> str:
    """Return the font of the dashboard as a rule of CSS: pages without a server load no file."""
    font = base64.b64encode((ROOT / "dashboard" / "assets" / "inter-latin-wght-normal.woff2").read_bytes()).decode()
    return (
        "@font-face { font-family: Inter; font-weight: 100 900; font-display: block; "
        f"src: url(data:font/woff2;base64,{font}) format('woff2'); }}"
    )


def _with_circles(content: str) -> str:
    """Return *content* with drawn circles: the machine may have no font with emojis."""
    for emoji, colour in (("🔴", "#dd2e44"), ("🟠", "#f4900c"), ("🟢", "#78b159")):
        style = f"display: inline-block; width: .8em; height: .8em; border-radius: 50%; background: {colour}"
        content = content.replace(emoji, f'<span style="{style}"></span>')
    return content


def _write(path: Path, screenshot: bytes) -> None:
    """Write *screenshot* in few colours: a small file."""
    image = Image.open(io.BytesIO(screenshot)).convert("RGB")
    # The most frequent colours stay unchanged, and so do surfaces; the others cover all colours, also rare ones.
    red, green, blue = np.moveaxis(np.asarray(image, dtype=np.int32), 2, 0)
    packed, place, counts = np.unique(red << 16 | green << 8 | blue, return_inverse=True, return_counts=True)
    colours = np.stack([packed >> 16, packed >> 8 & 255, packed & 255], axis=1)
    frequent = colours[np.argsort(-counts, kind="stable")[:_FREQUENT]]
    covering = image.quantize(COLOURS - len(frequent), method=Image.Quantize.MAXCOVERAGE).getpalette() or []
    palette = np.concatenate([frequent, np.reshape(covering, (-1, 3))])[:COLOURS]
    nearest = np.array([((palette - colour) ** 2).sum(axis=1).argmin() for colour in colours], dtype=np.uint8)
    small = Image.fromarray(nearest[place].reshape(image.height, image.width), "P")
    small.putpalette(palette.astype(np.uint8).tobytes())
    small.save(path, optimize=True)


def record(found: Mapping[str, Sequence[str]]) -> None:
    RECORDED.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def main(names: Sequence[str]) -> int:
    every = (*SHOTS, *OTHERS)
    if unknown := [name for name in names if name not in every]:
        print(f"there is no picture {', '.join(unknown)}; there are {', '.join(every)}", file=sys.stderr)
        return 2
    with data() as (fleet, run):
        draw(names or every, IMAGES, fleet, run)
        record(texts(fleet, run))
    for name in names or every:
        print(f"docs/images/{name}.png {(IMAGES / f'{name}.png').stat().st_size / 1000:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
