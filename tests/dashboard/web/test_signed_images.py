"""Signed images over HTTP: each is drawn once, and drawing takes no thread from the pages."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime, timedelta
from http.client import HTTPConnection, HTTPResponse
from urllib.parse import urlsplit

import pytest

from stagelens.dashboard.access import EVERYTHING
from stagelens.dashboard.config import DashboardConfig
from stagelens.dashboard.source import Source
from stagelens.dashboard.view import parse
from stagelens.dashboard.web import previews
from stagelens.dashboard.web.app import Dashboard
from stagelens.dashboard.web.preview_image import ViewPreview, preview_png
from stagelens.dashboard.web.previews import PreviewLinks
from stagelens.store import Store
from tests.dashboard.served_versions import NOW

BASE = "https://lens.example.com"
TIMEOUT_SECONDS = 60


class Pen:
    """Drawing of previews: counts the images, and can hold them."""

    def __init__(self) -> None:
        self.drawn: list[str] = []
        self.started, self.go_on = threading.Semaphore(0), threading.Event()
        self.most_at_once = 0
        self._lock, self._at_once = threading.Lock(), 0

    def draw(self, preview: ViewPreview) -> bytes:
        """Draw *preview* once `go_on` is set."""
        with self._lock:
            self.drawn.append(preview.title)
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        self.started.release()
        assert self.go_on.wait(TIMEOUT_SECONDS)
        with self._lock:
            self._at_once -= 1
        return preview_png(preview)


class Server:
    """A dashboard on a socket, with its own clock."""

    def __init__(self, store: Store) -> None:
        self.now = NOW
        self.dashboard = Dashboard(DashboardConfig(port=0, url=BASE), store, clock=lambda: self.now.timestamp())  # noqa: PLW0108 - `now` changes
        self.dashboard.start()
        self._store = store

    def url(self, address: str, signed_at: datetime = NOW) -> str:
        """Return path and query of the image of the page *address*."""
        path, _, query = address.partition("?")
        links = PreviewLinks(Source(self._store, None, signed_at.timestamp), lambda: BASE)
        url = urlsplit(links.image_url(parse(path, query, NOW), EVERYTHING, [BASE]))
        return f"{url.path}?{url.query}"

    def fetch(self, path: str, method: str = "GET", **headers: str) -> tuple[HTTPResponse, bytes]:
        """Return the response to a request on a connection of its own."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        with contextlib.closing(HTTPConnection(*self.dashboard.address, timeout=TIMEOUT_SECONDS)) as connection:
            connection.request(method, path, headers=sent)
            response = connection.getresponse()
            return response, response.read()

    def status(self, path: str) -> int:
        """Return the status of a GET."""
        return self.fetch(path)[0].status


@pytest.fixture
def pen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pen]:
    """Counts the images that are drawn."""
    made = Pen()
    monkeypatch.setattr(previews, "preview_png", made.draw)
    yield made
    made.go_on.set()


@pytest.fixture
def server(filled: Store, pen: Pen) -> Iterator[Server]:
    """A dashboard whose images are drawn by `pen`, which must be released before the end."""
    started = Server(filled)
    yield started
    pen.go_on.set()
    started.dashboard.stop()


@contextlib.contextmanager
def concurrently(
    action: Callable[[str], tuple[HTTPResponse, bytes]], paths: list[str]
) -> Generator[list[Future[tuple[HTTPResponse, bytes]]]]:
    """Run *action* for all *paths* at the same time."""
    with ThreadPoolExecutor(len(paths)) as pool:
        yield [pool.submit(action, each) for each in paths]


def test_an_image_is_drawn_once_for_concurrent_requests(server: Server, pen: Pen) -> None:
    pen.go_on.set()
    other, leaked = server.url("/traces"), server.url("/s/checkout")
    known = server.fetch(other)[1]
    pen.go_on.clear()
    with concurrently(server.fetch, [leaked] * 40) as waiting:
        assert pen.started.acquire(timeout=TIMEOUT_SECONDS)
        assert pen.started.acquire(timeout=TIMEOUT_SECONDS)
        beside = [server.fetch(path) for path in ("/", "/readyz", "/livez", other)]
        pen.go_on.set()
        responses = [each.result() for each in waiting]

    assert [response.status for response, _ in beside] == [200] * len(beside)
    assert beside[-1][1] == known
    assert {response.status for response, _ in responses} == {200}
    assert len({body for _, body in responses}) == 1
    assert pen.drawn == ["Traces", "checkout"]


def test_images_are_drawn_one_at_a_time_and_few_wait(server: Server, pen: Pen) -> None:
    urls = [server.url(f"/s/checkout?p={percentile}") for percentile in range(1, 41)]
    pen.go_on.set()
    known = server.fetch(urls[0])[1]
    pen.go_on.clear()
    refused = threading.Semaphore(0)

    def fetch(path: str) -> tuple[HTTPResponse, bytes]:
        response = server.fetch(path)
        if response[0].status == 503:
            refused.release()
        return response

    with concurrently(fetch, urls[1:]) as waiting:
        assert refused.acquire(timeout=TIMEOUT_SECONDS)
        beside = server.fetch(urls[0]), server.fetch("/")
        pen.go_on.set()
        responses = [each.result()[0] for each in waiting]
    served = [each for each in responses if each.status == 200]
    busy = [each for each in responses if each.status == 503]

    assert beside[0][1] == known
    assert beside[1][0].status == 200
    assert len(served) + len(busy) == len(responses)
    assert all(int(each.headers["Retry-After"]) > 0 for each in busy)
    assert pen.most_at_once == 1
    assert [server.status(each) for each in urls] == [200] * len(urls)


@pytest.mark.parametrize(("address", "is_settled"), [("/?from=now-1h", False), ("/?from=now-9h&to=now-6h", True)])
def test_an_image_is_drawn_again_when_it_may_have_changed(
    server: Server, pen: Pen, address: str, *, is_settled: bool
) -> None:
    pen.go_on.set()
    path = server.url(address)
    drawn = list[int]()
    for hours in (0, 0.1, 3):
        server.now = NOW + timedelta(hours=hours)
        assert (server.status(path), server.status(path)) == (200, 200)
        drawn.append(len(pen.drawn))

    assert drawn == ([1, 1, 2] if is_settled else [1, 2, 3])


def test_every_form_of_a_valid_url_is_one_image(server: Server, pen: Pen) -> None:
    pen.go_on.set()
    path = server.url("/s/checkout")
    base, _, query = path.partition("?")
    forms = [f"{path}&n=1", f"{path}&path=/", f"{base}?n=2&{'&'.join(reversed(query.split('&')))}", path]
    forms.append(server.url("/s/checkout", signed_at=NOW + timedelta(days=1)))
    bodies = {server.fetch(each)[1] for each in forms}
    head, empty = server.fetch(path, "HEAD")
    ranged, _ = server.fetch(path, Range="bytes=0-9")

    assert len(set(forms)) == len(forms)
    assert len(bodies) == 1
    assert (head.status, empty, ranged.status in (200, 206)) == (200, b"", True)
    assert pen.drawn == ["checkout"]


def test_an_unchanged_image_is_not_sent_again(server: Server, pen: Pen) -> None:
    pen.go_on.set()
    path = server.url("/s/checkout")
    first, _ = server.fetch(path)
    again, body = server.fetch(path, If_None_Match=first.headers["ETag"])
    other, _ = server.fetch(path, If_None_Match='"another"')

    assert (again.status, body, other.status) == (304, b"", 200)
    assert again.headers["Cache-Control"] == first.headers["Cache-Control"]


def test_an_image_that_cannot_be_drawn_is_tried_again(
    server: Server, pen: Pen, monkeypatch: pytest.MonkeyPatch
) -> None:
    pen.go_on.set()
    path = server.url("/s/checkout")
    with monkeypatch.context() as patched:
        patched.setattr(previews, "preview_png", lambda _preview: 1 / 0)
        failed = [server.status(path) for _ in range(40)]

    assert set(failed) == {500}
    assert server.status(path) == 200
