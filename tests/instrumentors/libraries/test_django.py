"""Django under WSGI and ASGI: what is counted as a request, what as which stage, and that nothing else changes."""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import logging
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from types import FunctionType
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.http import FileResponse, HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.test import RequestFactory, override_settings
from django.urls import include, path, re_path
from django.views import View
from starlette.applications import Starlette
from starlette.routing import Mount
from werkzeug.test import Client, EnvironBuilder

from stagelens.instrumentors import named_attributes, records
from stagelens.instrumentors.instrumentor import Instrumentor
from stagelens.instrumentors.libraries import django as module
from stagelens.instrumentors.libraries.django import DjangoInstrumentor
from stagelens.instrumentors.libraries.starlette import StarletteInstrumentor
from stagelens.instrumentors.records import ATTRIBUTE
from tests.instrumentors.libraries.drivers import configure_django, instrumenting
from tests.support.endpoint_work import WORK_NS, own_times, work

if TYPE_CHECKING:
    from conftest import Finished

INSTRUMENTOR = DjangoInstrumentor
pytestmark = pytest.mark.usefixtures("instrumented")

# Method, path, options: the status and the body.
Ask = Callable[..., tuple[int, bytes]]


def item(_: HttpRequest, item: int) -> JsonResponse:
    return JsonResponse({"item": item})


def form(request: HttpRequest) -> HttpResponse:
    return HttpResponse(str(request.POST["a"]).encode())


def broken(_: HttpRequest) -> HttpResponse:
    message = "broken"
    raise LookupError(message)


def in_request(key: str) -> None:
    marks = records.current.get()
    assert marks is not None
    marks.extend((key, 1, 2))


def stream(_: HttpRequest) -> StreamingHttpResponse:
    def parts() -> Generator[str]:
        for n in range(3):
            in_request(f"part {n}")
            yield "x"

    return StreamingHttpResponse(parts())


def async_stream(_: HttpRequest) -> StreamingHttpResponse:
    async def parts() -> AsyncGenerator[str]:
        for n in range(3):
            in_request(f"part {n}")
            yield "x"

    return StreamingHttpResponse(parts())


def words(_: HttpRequest) -> StreamingHttpResponse:
    async def parts() -> AsyncGenerator[str]:
        yield "\N{LATIN SMALL LETTER E WITH ACUTE}"

    return StreamingHttpResponse(parts())


def file(_: HttpRequest) -> FileResponse:
    return FileResponse(open(__file__, "rb"))  # noqa: PTH123 - the response closes it


class Own(HttpResponse):
    reads = 0

    def _read(self) -> bytes:
        self.reads += 1
        return super().content

    content: Any = HttpResponse.content.getter(_read)  # type: ignore[assignment]


def worker(_: HttpRequest) -> HttpResponse:
    work()
    return HttpResponse()


async def async_worker(_: HttpRequest) -> HttpResponse:
    work()
    return HttpResponse()


class Worker(View):
    def get(self, _: HttpRequest) -> HttpResponse:
        work()
        return HttpResponse()


def async_worker_stream(_: HttpRequest) -> StreamingHttpResponse:
    async def parts() -> AsyncGenerator[str]:
        for _ in range(2):
            work()
            yield "x"

    return StreamingHttpResponse(parts())


def worker_stream(_: HttpRequest) -> StreamingHttpResponse:
    def parts() -> Iterator[str]:
        for _ in range(2):
            work()
            yield "x"

    return StreamingHttpResponse(parts())


def slow_middleware(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    def middleware(request: HttpRequest) -> HttpResponse:
        work()
        response = get_response(request)
        work()
        return response

    return middleware


PATTERNS = (
    path("worker", worker),
    path("async-worker", async_worker),
    path("class-worker", Worker.as_view()),
    path("worker-stream", worker_stream),
    path("async-worker-stream", async_worker_stream),
    path("items/<int:item>/", item),
    path("form", form),
    path("broken", broken),
    path("stream", stream),
    path("async-stream", async_stream),
    path("words", words),
    path("own", lambda _: Own(b"own")),
    path("file", file),
    path("part/", include([path("things/<path:where>", lambda _, where: HttpResponse(where))])),
    re_path(r"^years/(?P<year>[0-9]{4})$", lambda _, year: HttpResponse(year)),
    path("", lambda _: HttpResponse(b"root")),
)


@pytest.fixture(scope="module", autouse=True)
def configured() -> Generator[None]:
    configure_django()
    with override_settings(ROOT_URLCONF=PATTERNS):
        yield


def client(handler: Any) -> Client:
    return Client(handler)


def by_wsgi(method: str, url: str, **options: Any) -> tuple[int, bytes]:
    """Send one request to a WSGI handler without a network, and read the complete response."""
    response = client(WSGIHandler()).open(url, method=method, buffered=True, **options)
    return response.status_code, response.data


def by_asgi(method: str, url: str, **options: Any) -> tuple[int, bytes]:
    return send_by_asgi(ASGIHandler(), method, url, **options)


def send_by_asgi(app: Any, method: str, url: str, **options: Any) -> tuple[int, bytes]:
    async def go() -> httpx.Response:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
            return await client.request(method, url, **options)

    response = asyncio.run(go())
    return response.status_code, response.content


@pytest.fixture(params=[by_wsgi, by_asgi])
def send_request(request: pytest.FixtureRequest) -> Ask:
    return request.param


def test_attributes_are_recorded(finished: Finished, send_request: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = named_attributes.parse("tenant=header:x-tenant,plan=baggage:plan")
    monkeypatch.setattr(named_attributes, "sources", listed)
    headers = {
        "X-Tenant": "acme",
        "X-Other": "secret",
        "Baggage": "user=secret,plan=gold",
        "Tracestate": "stagelens=checkout",
    }
    _, body = send_request("GET", "/items/42/", headers=headers)

    marks = [(key, value) for key, value, _ in finished.marks() if key in {ATTRIBUTE, "@caller", "@response_size"}]
    assert sorted(marks, key=str) == [
        (ATTRIBUTE, ("plan", "gold")),
        (ATTRIBUTE, ("tenant", "acme")),
        ("@caller", "stagelens=checkout"),
        ("@response_size", len(body)),
    ]
    assert "secret" not in repr(finished)


@pytest.mark.parametrize(
    ("url", "route", "status"),
    [
        ("/part/things/secret/9f8e", "/part/things/<path:where>", 200),
        ("/years/1999", "/^years/(?P<year>[0-9]{4})$", 200),
        ("/", "/", 200),
        ("/items/secret/", "__unmatched__", 404),
        ("/wp-login.php", "__unmatched__", 404),
    ],
)
def test_the_route_is_a_template_never_a_path(
    finished: Finished, send_request: Ask, url: str, route: str, status: int
) -> None:
    assert send_request("GET", url)[0] == status
    assert [record[3:6] for record in finished] == [(route, "", status)]


def test_a_form_is_read_in_network_and_parsed_in_serialize(finished: Finished, send_request: Ask) -> None:
    assert send_request("POST", "/form", data={"a": "1"}) == (200, b"1")
    assert {"network", "serialize", "handler", "framework"} == set(finished.stages())


def test_an_exception_is_an_error_by_its_name(finished: Finished, send_request: Ask) -> None:
    assert send_request("GET", "/broken")[0] == 500
    assert [record[3:6] for record in finished] == [("/broken", "LookupError", 500)]


@pytest.mark.parametrize(
    ("asker", "url", "facts"),
    [
        (by_wsgi, "/stream", {"@first_token", "@gap"}),
        (by_asgi, "/async-stream", {"@first_token", "@gap"}),
        # Django has all of it before the first part.
        (by_wsgi, "/async-stream", set()),
    ],
)
@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume asynchronous iterators")
def test_a_stream_is_inside_its_request_to_the_last_part(
    finished: Finished, asker: Ask, url: str, facts: set[str]
) -> None:
    assert asker("GET", url) == (200, b"xxx")
    assert [stage for stage in finished.stages() if stage.startswith("part")] == ["part 0", "part 1", "part 2"]
    assert facts < finished.facts().keys()
    assert finished[0][3:6] == (url, "", 200)


@pytest.mark.parametrize("url", ["/items/1/", "/worker-stream", "/words", "/file", "/own", "/broken", "/missing"])
@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume asynchronous iterators")
def test_the_server_gets_the_response_of_django(finished: Finished, instrumented: Instrumentor, url: str) -> None:
    def seen() -> list[Any]:
        response: Any = WSGIHandler()(EnvironBuilder(url).get_environ(), lambda *_: None)
        running = len(finished)
        found = [type(response), *vars(response), repr(response), str(response.headers), response.streaming]
        found += [type(getattr(response, "_iterator", None)), getattr(response, "reads", None)]
        found += [type(iter(response)), list(copy.copy(response)), list(response)]
        response["X-Added"] = "yes"
        response.close()
        assert running == 0
        return [*found, response["X-Added"], response.closed]

    instrumented.uninstrument()
    without_us = seen()
    instrumented.instrument()

    assert seen() == without_us
    assert len(finished) == 1


class Answer:
    """View that is an object, which has no name."""

    csrf_exempt = True

    def __call__(self, _: HttpRequest) -> HttpResponse:
        work()
        return HttpResponse()


@pytest.mark.parametrize(
    "view", [worker, async_worker, Worker.as_view(), functools.partial(worker), Answer(), Answer().__call__]
)
def test_a_timed_view_has_the_name_and_the_attributes_of_the_view(in_a_request: Finished, view: Any) -> None:
    timed: Any = WSGIHandler().make_view_atomic(view)

    for name in ("__name__", "__qualname__", "__module__", "__doc__", "csrf_exempt", "view_class", "func", "__class__"):
        assert getattr(timed, name, None) == getattr(view, name, None)
    assert inspect.iscoroutinefunction(timed) is inspect.iscoroutinefunction(view)
    assert inspect.signature(timed) == inspect.signature(view)
    assert repr(timed) == repr(view) or isinstance(view, FunctionType)
    if view is async_worker:
        asyncio.run(timed(RequestFactory().get("/")))
    else:
        timed(RequestFactory().get("/"))
    assert "handler" in in_a_request.stages()


def test_a_middleware_that_reads_the_response_and_passes_it_on_sends_its_body(finished: Finished) -> None:
    def middleware(environ: Any, start_response: Any) -> Any:
        response: Any = WSGIHandler()(environ, start_response)
        assert b"".join(response) == b"root"
        return response

    assert client(middleware).get("/", buffered=True).data == b"root"
    assert ("@response_size", 4, 0) in finished.marks()


def test_a_client_disconnect_finishes_a_stream_once(finished: Finished) -> None:
    response = client(WSGIHandler()).open("/stream")
    next(response.iter_encoded())
    seen = len(finished)
    response.close()

    assert seen == 0
    assert [record[3:6] for record in finished] == [("/stream", "", 200)]
    assert records.current.get() is None


def test_a_file_is_sent_by_the_server_file_wrapper(finished: Finished) -> None:
    class Wrapper:
        def __init__(self, file: Any, size: int) -> None:
            self.file, self.size = file, size
            self.close = file.close

    environ = {**EnvironBuilder("/file").get_environ(), "wsgi.file_wrapper": Wrapper}
    handed: Any = WSGIHandler()(environ, lambda *_: None)
    seen = len(finished)
    handed.close()

    assert isinstance(handed, Wrapper)
    assert handed.file.closed
    assert seen == 0
    assert [record[3:6] for record in finished] == [("/file", "", 200)]


def test_non_http_asgi_scopes_are_passed_through(finished: Finished) -> None:
    async def go(kind: str) -> None:
        async def nothing(*_: Any) -> Any:
            return {}

        await ASGIHandler()({"type": kind}, nothing, nothing)

    for kind in ("lifespan", "websocket"):
        with pytest.raises(ValueError, match=f"not {kind}"):
            asyncio.run(go(kind))

    assert list(finished) == []


def test_a_mounted_application_is_one_request(finished: Finished) -> None:
    with instrumenting(StarletteInstrumentor()):
        response = send_by_asgi(Starlette(routes=[Mount("/site", ASGIHandler())]), "GET", "/site/items/1/")

    assert response == (200, b'{"item": 1}')
    assert [record[3:6] for record in finished] == [("/site/items/<int:item>/", "", 200)]


def test_an_agent_failure_is_logged_once_and_the_service_responds(
    finished: Finished,
    send_request: Ask,
    reported: set[str],
    make_fail: Callable[[Any, str], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    make_fail(module, "_exchange_of")
    with caplog.at_level(logging.WARNING, "stagelens"):
        statuses = [send_request("GET", url)[0] for url in ("/items/1/", "/items/1/", "/broken", "/broken")]

    assert statuses == [200, 200, 500, 500]
    assert [record[3:6] for record in finished] == [("__unmatched__", "", status) for status in statuses]
    assert sum(record.name == "stagelens" for record in caplog.records) == len(reported) == 2


@pytest.mark.parametrize("url", ["/worker", "/async-worker", "/class-worker"])
def test_the_view_is_handler_and_the_rest_framework(finished: Finished, send_request: Ask, url: str) -> None:
    with override_settings(MIDDLEWARE=[f"{__name__}.slow_middleware"]):
        assert send_request("GET", url)[0] == 200

    own = own_times(finished)
    assert own["framework"] >= 2 * WORK_NS
    assert own["handler"] >= WORK_NS
    assert own["overhead"] == 0


@pytest.mark.parametrize(
    ("asker", "url"), [(by_wsgi, "/worker-stream"), (by_asgi, "/worker-stream"), (by_asgi, "/async-worker-stream")]
)
@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume")
def test_a_stream_is_handler(finished: Finished, asker: Ask, url: str) -> None:
    with override_settings(MIDDLEWARE=[f"{__name__}.slow_middleware"]):
        assert asker("GET", url) == (200, b"xx")

    own = own_times(finished)
    assert own["framework"] >= 2 * WORK_NS
    assert own["handler"] >= 2 * WORK_NS
    assert own["overhead"] == 0


@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume")
def test_an_asynchronous_stream_under_wsgi_is_handler(finished: Finished) -> None:
    assert by_wsgi("GET", "/async-worker-stream") == (200, b"xx")

    assert own_times(finished)["handler"] >= 2 * WORK_NS
