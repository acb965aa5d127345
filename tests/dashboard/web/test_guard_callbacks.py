"""Requests to the page callback, from pages and from others."""

from __future__ import annotations

import copy
import json
import logging
from typing import Any

import pytest
from flask.testing import FlaskClient

from stagelens.dashboard.web.app import Dashboard
from stagelens.dashboard.web.guard import CALLBACK_PATH

# What a browser sends when it opens the overview.
CALL: dict[str, Any] = {
    "output": "..made.data...seen.data..",
    "outputs": [{"id": "made", "property": "data"}, {"id": "seen", "property": "data"}],
    "inputs": [
        {"id": "url", "property": "pathname", "value": "/"},
        {"id": "url", "property": "search", "value": ""},
        {"id": "tick", "property": "data"},
    ],
    "changedPropIds": ["url.pathname"],
    "state": [{"id": "seen", "property": "data"}],
}


@pytest.fixture(scope="module")
def client(dashboard: Dashboard) -> FlaskClient:
    """A client of the dashboard over the filled store."""
    return dashboard.app.server.test_client()


def changed(**parts: Any) -> dict[str, Any]:
    return {**copy.deepcopy(CALL), **parts}


def valued(value: Any) -> list[dict[str, Any]]:
    return [{**CALL["inputs"][0], "value": value}, *CALL["inputs"][1:]]


def test_a_page_callback_is_served(client: FlaskClient) -> None:
    """With what goes where."""
    response = client.post(CALLBACK_PATH, json=CALL)

    assert response.status_code == 200
    assert response.json is not None
    assert "Fleet overview" in response.json["response"]["made"]["data"]["root"]


@pytest.mark.parametrize(
    "body",
    [
        *("{bad", "[]", "null", "{}", '"text"', "[" * 100_000),
        json.dumps(changed(output="root.children")),
        json.dumps(changed(inputs=[])),
        json.dumps(changed(inputs=valued(5))),
        json.dumps(changed(inputs=valued({"a": 1}))),
        json.dumps(changed(outputs=[{"id": {"k": "x"}, "property": "data"}, None])),
        json.dumps(changed(state=[{"id": "seen", "property": "data", "value": "x"}])),
        json.dumps(changed(changedPropIds={})),
    ],
)
def test_a_callback_no_page_sends_is_refused(client: FlaskClient, caplog: pytest.LogCaptureFixture, body: str) -> None:
    """With a sentence, and without a word in the log."""
    with caplog.at_level(logging.WARNING):
        response = client.post(CALLBACK_PATH, data=body, content_type="application/json")

    assert (response.status_code, response.mimetype) == (400, "text/plain")
    assert not caplog.records


def test_an_oversized_callback_body_is_not_read(client: FlaskClient) -> None:
    """A few of them would fill the memory."""
    assert client.post(CALLBACK_PATH, data=b" " * 2**21, content_type="application/json").status_code == 413


@pytest.mark.parametrize("path", ["/s/\ud800", "/s/%00", "/s/%ed%a0%80/tokens", "/traces/%00"])
def test_an_address_with_characters_no_database_stores_is_a_page(
    client: FlaskClient, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    """The page reports that the object does not exist."""
    with caplog.at_level(logging.WARNING):
        response = client.post(CALLBACK_PATH, json=changed(inputs=valued(path)))

    assert response.status_code == 200
    assert not caplog.records
