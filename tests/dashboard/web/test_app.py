"""The documents of the pages: complete without scripts, streamed, and the parts of a page for browsers that have its frame."""

from __future__ import annotations

import codecs
import contextlib
import html
import json
import logging
import re
import socket
import threading
import zlib
from collections.abc import Generator, Iterator
from datetime import UTC, datetime
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import zstandard
from dash import html as components
from flask import Flask
from flask.testing import FlaskClient
from werkzeug.wsgi import ClosingIterator

from stagelens.dashboard.config import DashboardConfig
from stagelens.dashboard.pages import overview_table
from stagelens.dashboard.web import app
from stagelens.dashboard.web.app import Dashboard
from stagelens.store import Batch, Series, Store

FIRST_CARD, LAST_CARD = "Fleet overview", "the last card"


@pytest.fixture
def last_card(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    is_ready = threading.Event()

    def card(*_: object) -> components.P:
        assert is_ready.wait(60)
        return components.P(LAST_CARD)

    monkeypatch.setattr(overview_table, "events_card", card)
    yield is_ready
    is_ready.set()


@contextlib.contextmanager
def opened(dashboard: Dashboard, encoding: str = "identity") -> Generator[HTTPResponse]:
    with contextlib.closing(HTTPConnection(*dashboard.address, timeout=60)) as connection:
        connection.request("GET", "/", headers={"Accept-Encoding": encoding})
        with connection.getresponse() as response:
            yield response


def decoder(encoding: str) -> Any:
    if encoding == "zstd":
        return zstandard.ZstdDecompressor().decompressobj().decompress
    return zlib.decompressobj(31).decompress if encoding == "gzip" else bytes


@pytest.mark.parametrize("encoding", ["identity", "gzip", "zstd"])
def test_a_page_is_sent_while_its_last_card_is_built(
    dashboard: Dashboard, last_card: threading.Event, encoding: str
) -> None:
    decoded, characters, text = decoder(encoding), codecs.getincrementaldecoder("utf-8")(), ""
    with opened(dashboard, encoding) as response:
        while FIRST_CARD not in text:
            text += characters.decode(decoded(response.read1()))
        before = text
        # Another reader does not wait for it.
        assert "vision-api" in dashboard.server.test_client().get("/s/vision-api").text
        last_card.set()
        while chunk := response.read1():
            text += characters.decode(decoded(chunk))

    assert LAST_CARD not in before
    assert '<nav aria-label="Pages">' in before
    assert text.index(FIRST_CARD) < text.index(LAST_CARD) < text.index('data-into="side"')
    assert text.endswith("</body></html>")


def test_a_page_is_not_completed_for_a_client_that_has_left(
    dashboard: Dashboard, last_card: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed, completed, close = threading.Event(), list[str](), Flask.wsgi_app

    def noted(self: Flask, environ: Any, start_response: Any) -> Any:
        return ClosingIterator(close(self, environ, start_response), closed.set)

    monkeypatch.setattr(Flask, "wsgi_app", noted)
    monkeypatch.setattr(app, "environment_menu", lambda _: completed.append("menu"))
    with opened(dashboard) as response:
        text = b""
        while FIRST_CARD.encode() not in text:
            text += response.read1()
    # The front learns of it before it handles the next request.
    with contextlib.closing(HTTPConnection(*dashboard.address, timeout=60)) as connection:
        connection.request("GET", "/livez")
        assert connection.getresponse().read() == b"ok\n"
    last_card.set()

    assert closed.wait(60)
    assert completed == []


def test_a_client_of_http_1_0_gets_the_length(dashboard: Dashboard) -> None:
    received = b""
    with socket.create_connection(dashboard.address, timeout=60) as connection:
        connection.sendall(b"GET / HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")
        while more := connection.recv(65_536):
            received += more
    head, _, body = received.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head)

    assert b"transfer-encoding" not in head
    assert length is not None
    assert int(length[1]) == len(body) > 10_000


def test_a_document_is_complete_without_scripts(client: FlaskClient) -> None:
    for path, status in (("/", 200), ("/s/vision-api", 200), ("/slo", 200), ("/nowhere", 404)):
        response = client.get(path)
        with client.head(path) as head:
            assert response.status_code == head.status_code == status
        assert 'data-title="' in response.text
        assert "Skip to content" in response.text


def fail(*_: object) -> None:
    raise ZeroDivisionError


def test_an_error_in_the_middle_is_a_card(
    client: FlaskClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(overview_table, "stage_time_card", fail)
    monkeypatch.setattr(overview_table, "events_card", lambda *_: components.P(LAST_CARD))
    with caplog.at_level(logging.ERROR):
        text = client.get("/").text

    assert text.index(FIRST_CARD) < text.index("ZeroDivisionError: the rest of the page") < text.index(LAST_CARD)
    assert 'id="seen"' in text
    assert "Where the fleet spends its time" in caplog.text


def test_an_error_of_the_frame_leaves_the_page(client: FlaskClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "environment_menu", fail)
    text = client.get("/").text

    assert text.count('class="page" data-title="') == 2
    assert text.index(FIRST_CARD) < text.index("ZeroDivisionError. See the log")
    assert 'id="seen"' not in text


def test_the_palette_lists_the_pages(client: FlaskClient) -> None:
    listed = client.get("/").text.partition('data-pages="')[2].partition('"')[0]
    pages = dict(json.loads(html.unescape(listed)))

    assert (pages["Overview"], pages["Settings"]) == ("/", "/settings")
    assert {"Traces", "SLOs", "Regressions", "Advice", "Events"} <= set(pages)


def test_an_invalid_state_gets_the_complete_page(client: FlaskClient, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        for seen in ("{bad", "[]", "null", "5", "[" * 100_000, '{"address": 5, "revision": []}'):
            assert FIRST_CARD in client.get("/parts", query_string={"path": "/", "seen": seen}).text

    assert not caplog.records


def test_the_first_requests_of_a_service_show_once_their_bucket_has_ended(traffic: ModuleType, tmp_path: Path) -> None:
    now = [datetime(2026, 11, 20, 12, 0, 3, tzinfo=UTC).timestamp()]
    store = Store.open(f"sqlite:///{tmp_path / 'first.db'}", clock=lambda: now[0])
    series = Series("shop", "1", "demo", "m", "1", "/", "cuda:0", "ok")
    requests = traffic.draw({"forward": traffic.Shape(10)}, 40, np.random.default_rng(7))
    store.write([Batch("first", [*traffic.points(series, int(now[0]) // 10 * 10, requests)], [], 0, "shop")])
    client = Dashboard(DashboardConfig(port=0), store, clock=lambda: now[0]).server.test_client()
    asked = {"service": "shop", "from": "now-1h"}
    before = [client.get(path).text for path in ("/", "/s/shop", "/s/shop/traces")]
    seen = re.findall(r'id="seen">(.*?)</script>', before[1])[0]
    early = client.get("/api/v1/query/latency", query_string=asked).get_json()
    now[0] += 12
    after = client.get("/parts", query_string={"path": "/s/shop", "seen": seen}).text
    late = client.get("/api/v1/query/latency", query_string=asked).get_json()
    store.close()

    assert all("Requests are arriving. This page counts them from 12:00:10 on." in each for each in before)
    assert not any("newer than this window" in each or "No request" in each for each in before)
    assert "Data is complete until 11:59:50." in before[0]
    assert (early["requests"], early["to"], early["complete_until"]) == (
        0,
        "2026-11-20T12:00:00Z",
        "2026-11-20T11:59:50Z",
    )
    assert "40 requests" in after
    assert (late["requests"], late["complete_until"]) == (40, "2026-11-20T12:00:00Z")


def test_an_address_with_characters_no_database_stores_is_a_page(
    client: FlaskClient, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        for path in ("/s/\ud800", "/s/%00", "/s/%ed%a0%80/tokens", "/traces/%00"):
            response = client.get("/parts", query_string={"path": path.encode(errors="surrogatepass")})
            assert 'data-title="' in response.text, path
            assert response.status_code == 200, path

    assert not caplog.records
