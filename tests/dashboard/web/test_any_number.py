"""Numbers of any length and form in addresses, forms and headers: an error with its fix, a page with a notice, never a failure."""

from __future__ import annotations

import logging
import re

import pytest
from flask.testing import FlaskClient

from stagelens.dashboard.web.api_queries import QUERIES

LONG = "9" * 5000
NUMBERS = (LONG, f"{LONG}ms", f"now-{LONG}h", "1e400", "nan", "²", "٣")
PAIRS = (
    *(f"0:{each}:0:{each}" for each in (LONG, "1e400", "nan")),
    *(f"batch_size:{each}" for each in (LONG, "²", "٣")),
)
PAGES = ("/", "/s/vision-api", "/traces", "/s/vision-api/traces", "/compare", "/audit")
KEYS = ("p", "min", "max", "at", "sel", "n", "from", "to", "a", "b")
HEADERS = ("Accept-Encoding", "If-None-Match", "Range", "X-Forwarded-For", "X-Forwarded-Port", "Cookie")


@pytest.fixture
def failures(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.ERROR)
    return caplog


def shown(failures: pytest.LogCaptureFixture) -> set[str]:
    return {
        f"{record.getMessage()[:60]} {record.exc_info and record.exc_info[1]!r}"[:200] for record in failures.records
    }


@pytest.mark.parametrize("page", PAGES)
def test_a_page_opens_with_a_notice(client: FlaskClient, failures: pytest.LogCaptureFixture, page: str) -> None:
    for given in ({"n": LONG}, *(dict.fromkeys(KEYS, number) for number in (*NUMBERS, *PAIRS))):
        response = client.get(page, query_string=given)
        assert response.status_code == 200, (page, str(given)[:60])
        assert "could not be" not in response.text, (page, str(given)[:60])
    assert not shown(failures)


def test_the_notice_names_the_parameter(client: FlaskClient) -> None:
    text = client.get("/s/vision-api/traces", query_string={"n": LONG, "min": LONG}).text

    assert re.search(r"n is \W\w*9{9}|n is &\W?\w+;9{9}", text)
    assert "the number of a page, from 1" in text


@pytest.mark.parametrize("question", QUERIES)
def test_a_query_has_an_error_with_its_fix(
    client: FlaskClient, failures: pytest.LogCaptureFixture, question: str
) -> None:
    usual = {"service": "vision-api", "name": "vision-latency"}
    for key in QUERIES[question].keys:
        for number in (*NUMBERS, *PAIRS):
            given = {name: usual[name] for name in QUERIES[question].keys if name in usual} | {key: number}
            response = client.get(f"/api/v1/query/{question}", query_string=given)
            assert response.status_code in (200, 400, 404), (key, number[:20], response.text[:200])
            if response.status_code == 400:
                assert response.json
                assert response.json["key"]
                assert response.json["fix"]
    assert not shown(failures)


@pytest.mark.parametrize("path", ["query", "query_range", "series", "labels", "label/route/values"])
def test_prometheus_refuses_it(client: FlaskClient, failures: pytest.LogCaptureFixture, path: str) -> None:
    usual = {
        "query": "stagelens_error_ratio",
        "start": "0",
        "end": "60",
        "step": "60",
        "match[]": "stagelens_error_ratio",
    }
    for key in ("time", "start", "end", "step", "limit", "lookback_delta", "timeout"):
        for number in (*NUMBERS, *PAIRS):
            response = client.get(f"/api/v1/{path}", query_string=usual | {key: number})
            assert response.status_code in (200, 400), (key, number[:20], response.text[:200])
            assert response.json
            assert response.status_code == 200 or f'"{key}"' in response.json["error"]
    for number in NUMBERS:
        for query in (number, f"topk({number}, stagelens_error_ratio)", f"stagelens_error_ratio offset {number}s"):
            assert client.get(f"/api/v1/{path}", query_string=usual | {"query": query}).status_code in (200, 400)
    assert not shown(failures)


def test_headers_and_signed_links_open(client: FlaskClient, failures: pytest.LogCaptureFixture) -> None:
    for number in NUMBERS:
        text = number.encode().decode("latin-1")
        for header in HEADERS:
            value = {"Accept-Encoding": f"gzip;q={text}", "Cookie": f"session={text}.{text}.{text}.{text}"}.get(
                header, text
            )
            assert client.get("/", headers={header: value}).status_code == 200
        assert client.get(f"/charts/{number}/{number}.png").status_code == 404
        event = f'{{"service": "vision-api", "kind": "deploy", "text": "x", "at": {number}}}'
        response = client.post("/api/v1/events", data=event.encode(), content_type="application/json")
        assert response.status_code in (400, 403)
    assert not shown(failures)
