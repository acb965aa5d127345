"""Django under WSGI and ASGI: what is counted as a request, what as which stage, and that nothing else changes."""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from types import FunctionType
from typing import TYPE_CHECKING, Any

import pytest
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.http import FileResponse, HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.test import RequestFactory, override_settings
from django.urls import include, path, re_path
from django.views import View
from starlette.applications import Starlette
from starlette.routing import Mount
from werkzeug.test import EnvironBuilder

from stagelens.instrumentors import records
from stagelens.instrumentors.instrumentor import Instrumentor
from stagelens.instrumentors.libraries.django import DjangoInstrumentor
from stagelens.instrumentors.libraries.starlette import StarletteInstrumentor
from tests.instrumentors.libraries.drivers import configure_django, instrumenting, request_asgi, request_wsgi
from tests.support.endpoint_work import WORK_NS, own_times, work

if TYPE_CHECKING:
    from conftest import Finished

INSTRUMENTOR = DjangoInstrumentor
pytestmark = pytest.mark.usefixtures("instrumented")


def item(_: HttpRequest, item: int) -> JsonResponse:
    return JsonResponse({"item": item})


def form(request: HttpRequest) -> HttpResponse:
    return HttpResponse(str(request.POST["a"]).encode())


def broken(_: HttpRequest) -> HttpResponse:
    message = "broken"
    raise LookupError(message)


def part_of(n: int) -> str:
    if (marks := records.current.get()) is not None:
        marks.extend((f"part {n}", 1, 2))
    work()
    return "\N{LATIN SMALL LETTER E WITH ACUTE}"


def stream(_: HttpRequest) -> StreamingHttpResponse:
    return StreamingHttpResponse(part_of(n) for n in range(3))


def async_stream(_: HttpRequest) -> StreamingHttpResponse:
    async def parts() -> AsyncGenerator[str]:
        for n in range(3):
            yield part_of(n)

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


async def async_worker(request: HttpRequest) -> HttpResponse:
    return worker(request)


class Worker(View):
    def get(self, request: HttpRequest) -> HttpResponse:
        return worker(request)


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
    path("items/<int:item>/", item),
    path("form", form),
    path("broken", broken),
    path("stream", stream),
    path("async-stream", async_stream),
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


def by_wsgi(method: str, url: str, **options: Any) -> Any:
    return request_wsgi(WSGIHandler(), method, url, **options)


def by_asgi(method: str, url: str, **options: Any) -> Any:
    return request_asgi(ASGIHandler(), method, url, **options)


@pytest.fixture(params=[by_wsgi, by_asgi])
def send_request(request: pytest.FixtureRequest) -> Any:
    return request.param


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
    finished: Finished, send_request: Any, url: str, route: str, status: int
) -> None:
    assert send_request("GET", url).status_code == status
    assert [record[3:6] for record in finished] == [(route, "", status)]


def test_a_form_is_read_in_network_and_parsed_in_serialize(finished: Finished, send_request: Any) -> None:
    assert send_request("POST", "/form", data={"a": "1"}).text == "1"
    assert {"network", "serialize", "handler", "framework"} == set(finished.stages())


@pytest.mark.parametrize(
    ("asker", "url", "facts"),
    [
        (by_wsgi, "/stream", {"@first_token", "@gap"}),
        (by_asgi, "/stream", {"@first_token", "@gap"}),
        (by_asgi, "/async-stream", {"@first_token", "@gap"}),
        # Django has all of it before the first part.
        (by_wsgi, "/async-stream", set()),
    ],
)
@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume")
def test_a_stream_is_handler_inside_its_request_to_the_last_part(
    finished: Finished, asker: Any, url: str, facts: set[str]
) -> None:
    with override_settings(MIDDLEWARE=[f"{__name__}.slow_middleware"]):
        assert asker("GET", url).text == part_of(0) * 3

    assert [stage for stage in finished.stages() if stage.startswith("part")] == ["part 0", "part 1", "part 2"]
    assert facts < finished.facts().keys()
    assert finished[0][3:6] == (url, "", 200)
    own = own_times(finished)
    assert own["framework"] >= 2 * WORK_NS
    assert own["handler"] >= 3 * WORK_NS
    assert own["overhead"] == 0


@pytest.mark.parametrize("url", ["/items/1/", "/stream", "/async-stream", "/file", "/own", "/broken", "/missing"])
@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume")
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

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return worker(request)


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

    assert request_wsgi(middleware, "GET", "/").text == "root"
    assert ("@response_size", 4, 0) in finished.marks()


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


def test_a_mounted_application_is_one_request(finished: Finished) -> None:
    with instrumenting(StarletteInstrumentor()):
        response = request_asgi(Starlette(routes=[Mount("/site", ASGIHandler())]), "GET", "/site/items/1/")

    assert response.json() == {"item": 1}
    assert [record[3:6] for record in finished] == [("/site/items/<int:item>/", "", 200)]


@pytest.mark.parametrize("url", ["/worker", "/async-worker", "/class-worker"])
def test_the_view_is_handler_and_the_rest_framework(finished: Finished, send_request: Any, url: str) -> None:
    with override_settings(MIDDLEWARE=[f"{__name__}.slow_middleware"]):
        assert send_request("GET", url).status_code == 200

    own = own_times(finished)
    assert own["framework"] >= 2 * WORK_NS
    assert own["handler"] >= WORK_NS
    assert own["overhead"] == 0
