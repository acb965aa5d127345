"""Sources, clients and pages of the dashboard, as tests read them from outside."""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from html.parser import HTMLParser
from pathlib import Path
from types import MappingProxyType
from typing import Any

from flask.testing import FlaskClient

from stagelens.alerts.objectives.slo_file import LiveSloFile
from stagelens.alerts.reader import AlertsReader
from stagelens.core.histogram import Histogram
from stagelens.core.names import REQUEST_DURATION
from stagelens.dashboard.config import DashboardConfig
from stagelens.dashboard.pages.page import Context, Page
from stagelens.dashboard.source import AlertsSource, Source
from stagelens.dashboard.ui.page_export import PageData, as_html, page_data, text_of
from stagelens.dashboard.view import parse
from stagelens.dashboard.web.app import Dashboard
from stagelens.dashboard.web.routing import context_of, page_of
from stagelens.store import Batch, Point, Series, Store
from tests.dashboard.served_versions import NOW

# Rows of a table in an accepted answer.
_SHOWN_ROWS = 3
TEXTS = Path(__file__).parent / "goldens" / "text"
# Of an incident that is none of the test's own.
_RANDOM_ID = re.compile(r"\bsl-(?!0{8})[0-9a-f]{20}\b")
_BLOCKS = {
    *("article", "dd", "details", "div", "dl", "dt", "footer", "form", "h1", "h2", "header", "li", "nav", "ol", "p"),
    *("pre", "section", "summary", "table", "tr", "ul"),
}


def alerts_of(store: Store, folder: Path, slos: str) -> AlertsReader:
    """Return the alerts of the objectives *slos*, which are written to a file in *folder*."""
    path = folder / "slo.yaml"
    path.write_text(slos, encoding="utf-8")
    return AlertsReader(store, LiveSloFile(path, {}))


def source_of(
    store: Store, folder: Path | None = None, slos: str = "", *, prices: str = "", now: datetime = NOW
) -> Source:
    """Return *store* with alerts, if there is a *folder* for its files, with *slos* and *prices*."""
    if folder is None:
        return Source(store, None, now.timestamp)
    alerts = alerts_of(store, folder, slos) if slos else AlertsReader(store, LiveSloFile(None, {}))
    (folder / "prices.yaml").write_text(prices, encoding="utf-8")
    config = DashboardConfig(prices=folder / "prices.yaml" if prices else None)
    return Source(store, alerts, now.timestamp, config=config)


def client_of(store: Store, alerts: AlertsSource | None = None, now: datetime = NOW, **config: Any) -> FlaskClient:
    """Return a client of a dashboard that does not listen."""
    return Dashboard(DashboardConfig(**config), store, alerts, clock=now.timestamp).server.test_client()


def csrf_headers(
    client: FlaskClient, path: str = "/", headers: Mapping[str, str] = MappingProxyType({})
) -> dict[str, str]:
    """Return *headers* and the CSRF token of the page at *path*."""
    match = re.search(r'name="csrf-token" content="(\w+)"', client.get(path, headers=headers).text)
    assert match is not None
    return {**headers, "X-CSRF-Token": match[1]}


def observed(value: float, count: int = 1) -> Histogram:
    """Return a histogram of *count* equal values."""
    histogram = Histogram()
    histogram.record(value, count)
    return histogram


def write_requests(store: Store, *series: Series, seconds: float = 0.1, count: int = 1, ago: int = 300) -> None:
    """Write equal requests of each of *series* of a moment before `NOW`."""
    at = int(NOW.timestamp()) // 10 * 10 - ago
    points = [Point(one_series, REQUEST_DURATION, "forward", at, observed(seconds, count)) for one_series in series]
    assert store.write([Batch(f"{series} {seconds} {count} {ago}", points)]) == [True]


def context_at(source: Source, address: str, now: datetime = NOW) -> Context:
    path, _, search = address.partition("?")
    return context_of(parse(path, search, now), source)


def page_at(source: Source, address: str, now: datetime = NOW) -> Page:
    page = page_of(context_at(source, address, now))
    assert page is not None
    return page


def data_at(source: Source, address: str, now: datetime = NOW) -> PageData:
    return page_data(page_at(source, address, now).body)


def html_at(source: Source, address: str, now: datetime = NOW) -> str:
    return as_html(page_at(source, address, now).body)


def shown(source: Source, address: str, now: datetime = NOW) -> str:
    """Return the words of a page, every kind of space a plain one."""
    return " ".join(text_of(node) for node in page_at(source, address, now).body)


def plain(text: str) -> str:
    return text.replace("\u202f", " ").replace("\xa0", " ")


class _Lines(HTMLParser):
    """Text of a page: a line for each paragraph and row, with the addresses of its links and the descriptions of its pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""
        self._skipped = self._rows = 0
        self._links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self._skipped += tag in {"script", "style"}
        self._break(tag, {"h2": "\n## ", "td": " | ", "th": " | "}.get(tag, ""))
        self._rows += tag == "tr"
        self._links += [given.get("href") or ""] if tag == "a" else []
        if given.get("role") == "img" or "data-chart" in given:
            self.text += f" {{{given.get('aria-label')}}} "

    def handle_endtag(self, tag: str) -> None:
        self._skipped -= tag in {"script", "style"}
        self._rows -= tag == "tr"
        if tag == "a" and (address := self._links.pop()):
            self.text += f" <{address}> "
        self._break(tag)

    def handle_data(self, data: str) -> None:
        self.text += "" if self._skipped else data.replace("\n", " ").replace("⋯", "")

    def _break(self, tag: str, start: str = "") -> None:
        self.text += start or ((" " if self._rows else "\n") if tag in _BLOCKS else "")


def lines_of(html: str) -> list[str]:
    parser = _Lines()
    parser.feed(html)
    found = (" ".join(re.sub(r"(\| )+\|", "|", line).split()).strip("| ") for line in parser.text.split("\n"))
    return [line for line in found if line]


def views(source: Source, *addresses: str, now: datetime = NOW) -> str:
    """Return the text of pages; after " # " an address has the start of the title of the card that is meant, or "head"."""

    def one(view: str) -> Iterator[str]:
        address, mark, title = view.partition(" # ")
        yield f"=== {view}"
        card = ""
        for line in lines_of(html_at(source, address, now)):
            card = line.removeprefix("## ") if line.startswith("## ") else card
            if not mark or (not card if title == "head" else card.startswith(title)):
                yield line

    return "\n".join(line for view in addresses for line in one(view)) + "\n"


def check_views(name: str, source: Source, *addresses: str, now: datetime = NOW) -> None:
    """Compare the text of pages with the accepted one; without *addresses* that of the pages which it has."""
    check_text(name, views(source, *(addresses or titles(name)), now=now))


def check_answers(name: str, client: FlaskClient, *queries: str) -> None:
    """Compare answers of the API, of tables the first rows, with the accepted ones; without *queries* those which they are of."""
    lines: list[str] = []
    for query in queries or titles(name):
        response = client.get(f"/api/v1/{query}")
        lines += [f"=== {query}", f"status: {response.status_code}"]
        for key, value in response.get_json().items():
            several = key == "rows" or (isinstance(value, list) and value and isinstance(value[0], dict))
            values = value[:_SHOWN_ROWS] if several and key != "columns" else [value]
            lines += [
                f"{key}: {json.dumps(_rounded(each), ensure_ascii=False)}" for each in values if key != "revision"
            ]
    check_text(name, "\n".join(lines) + "\n")


def titles(name: str) -> list[str]:
    """Return the addresses in an accepted text."""
    lines = (TEXTS / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    return [line.removeprefix("=== ") for line in lines if line.startswith("=== ")]


def _rounded(value: Any) -> Any:
    """Return *value* with columns as their names, and numbers of six digits."""
    if isinstance(value, dict):
        named = {key: _rounded(each) for key, each in value.items()}
        return " ".join(map(str, named.values())) if "name" in named and named.keys() <= {"name", "unit"} else named
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def check_text(name: str, found: str) -> None:
    """Compare *found* with the accepted text; `STAGELENS_GOLDENS=accept` takes that of this run, to be read before a commit."""
    golden, found = TEXTS / f"{name}.txt", _RANDOM_ID.sub("sl-ID", found)
    if os.environ.get("STAGELENS_GOLDENS") == "accept":
        golden.write_text(found, encoding="utf-8")
    lines = difflib.unified_diff(golden.read_text(encoding="utf-8").splitlines(), found.splitlines(), lineterm="", n=1)
    difference = "\n".join(lines)
    assert not difference, difference


def links_in(node: Any) -> dict[str, str]:
    """Return the addresses of the links in *node* by their text; of equal texts the first."""
    links = {text_of(node): str(node.href)} if getattr(node, "href", None) else {}
    inside = node if isinstance(node, list) else getattr(node, "children", None)
    for child in inside if isinstance(inside, list) else [inside]:
        if child is not None and not isinstance(child, str):
            links = links_in(child) | links
    return links


def all_of(node: Any, kind: type) -> Iterator[Any]:
    """Yield the elements of one *kind* in *node*."""
    if isinstance(node, list | tuple):
        for each in node:
            yield from all_of(each, kind)
    elif node is not None and not isinstance(node, str):
        if isinstance(node, kind):
            yield node
        yield from all_of(getattr(node, "children", None), kind)
