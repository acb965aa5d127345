"""A view as one file: static, whole, and harmless."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

from dash import dcc, html
from flask.testing import FlaskClient
from hypothesis import given
from hypothesis import strategies as st

from stagelens.dashboard.pages.page import Page
from stagelens.dashboard.ui.components import attributes, chart
from stagelens.dashboard.ui.page_export import as_html
from stagelens.dashboard.web.report import report
from stagelens.store import Store
from tests.dashboard.rendering import context_at, source_of
from tests.dashboard.served_versions import NOW

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"


class Reader(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


@given(st.text(), st.text())
def test_no_text_becomes_markup(text: str, name: str) -> None:
    read = Reader(as_html(html.Div([text, html.B(name)], title=name, **attributes({"data-name": text}))))

    assert [tag for tag, _ in read.tags] == ["div", "b"]
    assert set(read.tags[0][1]) == {"title", "data-name"}
    # Two words stay two words.
    assert lines(read.text) in (lines(text + name), lines(f"{text} {name}"))


def lines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


def test_attributes_are_written_as_html() -> None:
    made = html.Label(
        html.Details(open=True, hidden=False, id="x"), className="a b", htmlFor="y", style={"fontSize": "1px", "--i": 2}
    )

    assert as_html(made, "report") == (
        '<label class="a b" for="y" style="font-size:1px;--i:2"><details open></details></label>'
    )


def test_an_unsafe_address_is_not_linked() -> None:
    for address in ("javascript:alert(1)", " javascript:alert(1)", "data:text/html,x", "//evil.example"):
        assert as_html(html.A("x", href=address)) == "<a>x</a>", address


def test_controls_that_need_a_server_are_omitted() -> None:
    made = html.Div(
        [
            dcc.Store(id="s", data={"a": 1}),
            html.Script("alert(1)"),
            html.Button("Time", className="on"),
            html.Button("Share", id="root"),
            html.Form(html.Button("Send", className="on")),
            html.Table(html.Tr(html.Th(html.Button("Queue")))),
        ]
    )

    assert as_html(made, "report") == (
        '<div><span class="on">Time</span><table><tr><th><button>Queue</button></th></tr></table></div>'
    )


def test_a_report_is_self_contained(client: FlaskClient) -> None:
    response = client.get("/report", query_string={"path": "/s/vision-api", "y": "share", "download": "1"})
    read = Reader(response.text)
    fetched = [attrs for tag, attrs in read.tags if tag in ("link", "img", "iframe") or "src" in attrs]
    figures = [attrs["data-spec"] for tag, attrs in read.tags if tag == "script" and "data-spec" in attrs]
    styles = "".join(re.findall(r"<style>(.*?)</style>", response.text, re.DOTALL))

    assert response.status_code == 200
    assert response.headers["Content-Disposition"] == 'attachment; filename="stagelens-s-vision-api.html"'
    assert "script-src 'sha256-" in response.headers["Content-Security-Policy"]
    assert fetched == []
    assert set(figures) >= {"percentile", "over", "heat"}
    assert all(url.startswith(("data:", '"data:')) for url in re.findall(r"url\(([^)]{0,12})", styles))
    assert "20 Nov 2026 06:00 to 20 Nov 2026 12:00, times in UTC" in read.text
    assert "localhost/s/vision-api?y=share" in response.text
    assert len(response.data) < 1_400_000


def test_names_cannot_close_the_tag_around_a_figure(filled: Store) -> None:
    context = context_at(source_of(filled), "/")
    page = Page(EVIL, [(EVIL, None)], [chart("c", {"data": [], "layout": {"title": EVIL}}, EVIL)])
    text = report(context, page, NOW, "")
    figure = re.search(r'data-spec="c">(.*?)</script>', text)

    assert "<script>alert" not in text
    assert "<img" not in text
    assert figure is not None
    assert json.loads(figure[1])["layout"]["title"] == EVIL


def test_without_an_address_a_report_has_no_links(filled: Store) -> None:
    context = context_at(source_of(filled), "/")
    text = report(context, Page("t", [("t", None)], [html.A("x", href="/s/a")]), NOW, "")

    assert "<a" not in text.partition("<body")[2].partition("<script")[0].replace("<a>x</a>", "")
