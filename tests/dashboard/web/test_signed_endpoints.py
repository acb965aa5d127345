"""Signed chart URLs: access to the chart of an incident without authentication."""

from __future__ import annotations

import contextlib
import io
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from http.client import HTTPConnection, HTTPResponse
from urllib.parse import urlsplit

import pytest
from flask.testing import FlaskClient
from PIL import Image

from stagelens.alerts.delivery import chart
from stagelens.alerts.delivery.chart import HEIGHT, WIDTH
from stagelens.alerts.delivery.message import Finding
from stagelens.alerts.incidents import journal, lifecycle
from stagelens.dashboard.config import DashboardConfig
from stagelens.dashboard.web import signed_endpoints
from stagelens.dashboard.web.app import Dashboard
from stagelens.store import Store
from tests.dashboard import many_incidents, notified_store
from tests.dashboard.notified_store import NOW

GUARDED = DashboardConfig(host="0.0.0.0", token="correct horse battery staple, again", hosts=("lens.example.com",))  # noqa: S106 - of this test
HERE = {"Host": "lens.example.com"}


TIMEOUT_SECONDS = 60


@pytest.fixture
def store(store: Store) -> Store:
    notified_store.fill(store)
    many_incidents.fill(store)
    return store


@pytest.fixture
def client(store: Store) -> FlaskClient:
    return Dashboard(GUARDED, store).server.test_client()


def path_of(store: Store, name: str) -> str:
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


def test_every_invalid_signature_is_404(store: Store, client: FlaskClient) -> None:
    without_a_key = client.get(f"/charts/{notified_store.OPEN}/{'0' * 64}.png", headers=HERE)
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
    responses = [without_a_key, *(client.get(each, headers=HERE) for each in wrong)]

    assert {response.status_code for response in responses} == {404}
    assert {response.data for response in responses} == {b"not found"}


def test_the_chart_of_an_open_incident_is_the_current_one(store: Store, client: FlaskClient) -> None:
    path = path_of(store, notified_store.OPEN)
    with store.transaction() as connection:
        found = lifecycle.get_incident(connection, notified_store.OPEN)
    assert found is not None
    assert found.finding.course is not None
    longer = replace(found.finding.course, values=(*found.finding.course.values, 60.0))
    responses = [client.get(path, headers=HERE)]
    for course in (longer, None):
        with store.transaction() as connection:
            lifecycle.save_incident(connection, replace(found, finding=replace(found.finding, course=course)))
        responses.append(client.get(path, headers=HERE))

    assert [each.status_code for each in responses] == [200, 200, 404]
    assert responses[0].data != responses[1].data


def test_signed_addresses_are_read_only(store: Store, client: FlaskClient) -> None:
    path = path_of(store, notified_store.OPEN)

    assert client.post(path, headers=HERE).status_code in (401, 405)
    assert client.get(path, headers={"Host": "evil.example"}).status_code == 421
    assert client.get(f"{path}/more", headers=HERE).status_code == 401
    assert client.get("/charts", headers=HERE).status_code == 401


class Pen:
    def __init__(self) -> None:
        self.drawn: list[str] = []
        self.started, self.go_on = threading.Semaphore(0), threading.Event()
        self.most_at_once = 0
        self._lock, self._at_once = threading.Lock(), 0

    def draw(self, finding: Finding) -> bytes | None:
        with self._lock:
            self.drawn.append(finding.name)
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        self.started.release()
        assert self.go_on.wait(TIMEOUT_SECONDS)
        with self._lock:
            self._at_once -= 1
        return chart.draw_chart(finding)


@pytest.fixture
def pen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pen]:
    pen = Pen()
    monkeypatch.setattr(signed_endpoints, "draw_chart", pen.draw)
    yield pen
    pen.go_on.set()


@pytest.fixture
def served(store: Store, pen: Pen) -> Iterator[Dashboard]:
    served = Dashboard(DashboardConfig(port=0), store, clock=NOW.timestamp)
    served.start()
    yield served
    pen.go_on.set()
    served.stop()


def fetch(served: Dashboard, path: str, method: str = "GET", **headers: str) -> tuple[HTTPResponse, bytes]:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    with contextlib.closing(HTTPConnection(*served.address, timeout=TIMEOUT_SECONDS)) as connection:
        connection.request(method, path, headers=sent)
        response = connection.getresponse()
        return response, response.read()


@contextlib.contextmanager
def concurrently(
    action: Callable[[str], tuple[HTTPResponse, bytes]], paths: Sequence[str]
) -> Generator[list[Future[tuple[HTTPResponse, bytes]]]]:
    with ThreadPoolExecutor(len(paths)) as pool:
        yield [pool.submit(action, path) for path in paths]


def test_a_chart_is_drawn_once_for_concurrent_requests(store: Store, served: Dashboard, pen: Pen) -> None:
    pen.go_on.set()
    other, leaked = path_of(store, notified_store.OVER), path_of(store, notified_store.OPEN)
    drawn_before = fetch(served, other)[1]
    pen.go_on.clear()
    with concurrently(lambda path: fetch(served, path), [leaked] * 40) as waiting:
        assert pen.started.acquire(timeout=TIMEOUT_SECONDS)
        assert pen.started.acquire(timeout=TIMEOUT_SECONDS)
        beside = [fetch(served, path) for path in ("/", "/readyz", "/livez", other)]
        pen.go_on.set()
        responses = [each.result() for each in waiting]

    assert [response.status for response, _ in beside] == [200] * len(beside)
    assert beside[-1][1] == drawn_before
    assert {response.status for response, _ in responses} == {200}
    assert len({body for _, body in responses}) == 1
    assert pen.drawn == ["search-latency", "checkout-latency"]


def test_charts_are_drawn_one_at_a_time_and_few_wait(store: Store, served: Dashboard, pen: Pen) -> None:
    paths = [path_of(store, f"sl-ticket{number:02}") for number in range(many_incidents.TICKETS)]
    pen.go_on.set()
    drawn_before = fetch(served, paths[0])[1]
    pen.go_on.clear()
    refused = threading.Semaphore(0)

    def fetch_or_count(path: str) -> tuple[HTTPResponse, bytes]:
        response = fetch(served, path)
        if response[0].status == 503:
            refused.release()
        return response

    with concurrently(fetch_or_count, paths[1:]) as waiting:
        assert refused.acquire(timeout=TIMEOUT_SECONDS)
        beside = fetch(served, paths[0]), fetch(served, "/")
        pen.go_on.set()
        responses = [each.result()[0] for each in waiting]
    busy = [response for response in responses if response.status == 503]

    assert beside[0][1] == drawn_before
    assert beside[1][0].status == 200
    assert {response.status for response in responses} == {200, 503}
    assert all(int(response.headers["Retry-After"]) > 0 for response in busy)
    assert pen.most_at_once == 1
    assert {fetch(served, path)[0].status for path in paths} == {200}


def test_every_form_of_a_valid_url_is_one_chart_that_is_sent_once(store: Store, served: Dashboard, pen: Pen) -> None:
    pen.go_on.set()
    path = path_of(store, notified_store.OPEN)
    first, body = fetch(served, path)
    bodies = {fetch(served, each)[1] for each in (f"{path}?n=1", f"{path}?path=/")}
    head, empty = fetch(served, path, "HEAD")
    again, nothing = fetch(served, path, If_None_Match=first.headers["ETag"])
    other, _ = fetch(served, path, If_None_Match='"another"')

    assert bodies == {body}
    assert (head.status, empty) == (200, b"")
    assert (again.status, nothing, other.status) == (304, b"", 200)
    assert again.headers["Cache-Control"] == first.headers["Cache-Control"]
    assert pen.drawn == ["checkout-latency"]


def test_a_chart_that_cannot_be_drawn_is_tried_again(
    store: Store, served: Dashboard, pen: Pen, monkeypatch: pytest.MonkeyPatch
) -> None:
    pen.go_on.set()
    path = path_of(store, notified_store.OPEN)
    with monkeypatch.context() as patched:
        patched.setattr(signed_endpoints, "draw_chart", lambda _finding: 1 / 0)
        failed = {fetch(served, path)[0].status for _ in range(40)}

    assert failed == {500}
    assert fetch(served, path)[0].status == 200
