"""Signed chart URLs: access to the chart of an incident without authentication."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from flask.testing import FlaskClient
from PIL import Image

from stagelens.alerts.delivery import chart
from stagelens.alerts.delivery.chart import HEIGHT, WIDTH
from stagelens.alerts.incidents import journal, lifecycle
from stagelens.dashboard.config import DashboardConfig
from stagelens.dashboard.web.app import Dashboard
from stagelens.store import Store
from tests.dashboard import notified_store
from tests.dashboard.notified_store import NOW

GUARDED = DashboardConfig(host="0.0.0.0", token="correct horse battery staple, again", hosts=("lens.example.com",))  # noqa: S106 - of this test
HERE = {"Host": "lens.example.com"}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """Incidents, one of which is open."""
    opened = Store.open(f"sqlite:///{tmp_path / 'told.db'}", clock=NOW.timestamp)
    notified_store.fill(opened)
    yield opened
    opened.close()


@pytest.fixture
def client(store: Store) -> FlaskClient:
    """Client without authentication."""
    return Dashboard(GUARDED, store).server.test_client()


def path_of(store: Store, name: str) -> str:
    """Return the path of the address that the alerts send."""
    with store.transaction() as connection:
        found = lifecycle.get_incident(connection, name)
        assert found is not None
        message = journal.build_message(found, "opened", NOW.timestamp())
        linked = replace(message, finding=replace(message.finding, link="https://lens.example.com/s/checkout"))
        return urlsplit(chart.chart_url(connection, linked)).path


@pytest.mark.parametrize("name", [notified_store.OPEN, notified_store.OVER])
def test_a_signed_address_serves_the_chart_only(store: Store, client: FlaskClient, name: str) -> None:
    response = client.get(path_of(store, name), headers=HERE)

    assert (response.status_code, response.mimetype) == (200, "image/png")
    assert Image.open(io.BytesIO(response.data)).size == (2 * WIDTH, 2 * HEIGHT)
    assert response.headers["Cache-Control"] == "private, max-age=60"
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert response.headers["Cross-Origin-Resource-Policy"] == "cross-origin"
    assert "Set-Cookie" not in response.headers
    assert client.get("/", headers=HERE).status_code == 401


def test_the_chart_of_an_open_incident_is_current(store: Store, client: FlaskClient) -> None:
    path = path_of(store, notified_store.OPEN)
    before = client.get(path, headers=HERE).data
    with store.transaction() as connection:
        found = lifecycle.get_incident(connection, notified_store.OPEN)
        assert found is not None
        assert found.finding.course is not None
        values = (*found.finding.course.values, 60.0)
        finding = replace(found.finding, course=replace(found.finding.course, values=values))
        lifecycle.save_incident(connection, replace(found, finding=finding))

    assert client.get(path, headers=HERE).data != before


def test_every_invalid_signature_is_404(store: Store, client: FlaskClient) -> None:
    path = path_of(store, notified_store.OPEN)
    right = path.rpartition("/")[2]
    wrong = [
        f"/charts/{notified_store.OPEN}/{'0' * 64}.png",
        f"/charts/{notified_store.OVER}/{right}",
        f"/charts/sl-that-never-was/{right}",
        f"/charts/{notified_store.OPEN}/{right[1:]}",
        f"/charts/{notified_store.OPEN}/.png.png",
        f"/charts/{notified_store.OPEN}/%F0%9F%94%B4.png",
        "/charts/%00/%ff.png",
    ]
    responses = [client.get(each, headers=HERE) for each in wrong]

    assert [response.status_code for response in responses] == [404] * len(wrong)
    assert {response.data for response in responses} == {b"not found"}


def test_without_a_signing_key_no_address_is_valid(client: FlaskClient) -> None:
    assert client.get(f"/charts/{notified_store.OPEN}/{'0' * 64}.png", headers=HERE).status_code == 404


def test_an_incident_without_a_chart_is_404(store: Store, client: FlaskClient) -> None:
    path = path_of(store, notified_store.OPEN)
    with store.transaction() as connection:
        found = lifecycle.get_incident(connection, notified_store.OPEN)
        assert found is not None
        lifecycle.save_incident(connection, replace(found, finding=replace(found.finding, course=None)))

    assert client.get(path, headers=HERE).status_code == 404


def test_signed_addresses_are_read_only(store: Store, client: FlaskClient) -> None:
    path = path_of(store, notified_store.OPEN)

    assert client.post(path, headers=HERE).status_code in (401, 405)
    assert client.get(path, headers={"Host": "evil.example"}).status_code == 421
    assert client.get(f"{path}/more", headers=HERE).status_code == 401
    assert client.get("/charts", headers=HERE).status_code == 401
