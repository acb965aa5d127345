"""One request of a WSGI application: where it starts and ends, and that servers see what they always saw."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import threading
import time
import wsgiref.handlers
import wsgiref.util
from collections.abc import Callable, Iterable, Iterator
from contextvars import copy_context
from types import GeneratorType
from typing import TYPE_CHECKING, Any
from wsgiref.validate import validator

import pytest
from starlette.testclient import TestClient
from wrapt import ObjectProxy

from stagelens.instrumentors import records
from stagelens.instrumentors.instrumentor import Instrumentor
from stagelens.instrumentors.libraries import proxy_waits, wsgi
from stagelens.instrumentors.libraries.starlette import StarletteInstrumentor
from tests.instrumentors.libraries.drivers import instrumenting

if TYPE_CHECKING:
    from conftest import Finished

Start = Callable[..., Any]


def served(application: Callable[[dict[str, Any], Start], Any]) -> Any:
    def app(environ: dict[str, Any], start_response: Start) -> Iterable[bytes]:
        return wsgi.serve(lambda _, *arguments: application(*arguments), None, environ, start_response)

    return app


def ok(start_response: Start) -> None:
    """Start a response with headers of its own: servers add to the very list."""
    start_response("200 OK", [("Content-Type", "text/plain")])


def environment(**more: Any) -> dict[str, Any]:
    environ: dict[str, Any] = {}
    wsgiref.util.setup_testing_defaults(environ)
    return {**environ, **more}


def call(app: Any, **environ: Any) -> Any:
    return app(environment(**environ), lambda *_: None)


def text(_: dict[str, Any], start_response: Start) -> list[bytes]:
    ok(start_response)
    return [b"fine"]


def three(_: dict[str, Any], start_response: Start) -> Iterator[bytes]:
    ok(start_response)
    yield from (b"x", b"x", b"x")


class Closing:
    """A framework's body, which notes in which request it was iterated and closed."""

    def __init__(self, start_response: Start) -> None:
        ok(start_response)
        self.seen: list[records.Marks | None] = []

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        self.seen.append(records.current.get())
        if len(self.seen) > 3:
            raise StopIteration
        return b"x"

    def close(self) -> None:
        self.seen.append(records.current.get())


def keeping(made: list[Closing]) -> Callable[[dict[str, Any], Start], Closing]:
    """Return an application that keeps its body."""

    def application(_: dict[str, Any], start_response: Start) -> Closing:
        made.append(Closing(start_response))
        return made[0]

    return application


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    now = [0]
    monkeypatch.setattr(wsgi, "clock", lambda: now[0])
    return now


@pytest.fixture(autouse=True)
def instrumented_bodies() -> Iterator[None]:
    """Patch the class as the instrumentor of its framework does."""

    class Bodies(Instrumentor):
        pass

    patches = Bodies()
    patches.replace(Closing, "__next__", wsgi.step)
    patches.replace(Closing, "close", wsgi.close)
    yield
    patches.uninstrument()


def test_the_request_is_in_the_context_during_each_step_and_never_in_between(finished: Finished) -> None:
    made: list[Closing] = []
    body = call(served(keeping(made)))
    outside = [records.current.get()]
    for _ in range(3):
        copy_context().run(next, body)
        outside.append(records.current.get())
    worker = threading.Thread(target=lambda: outside.extend(list(body)))
    worker.start()
    worker.join()
    body.close()

    assert [marks is finished[0][0] for marks in made[0].seen] == [True, True, True, True, False]
    assert outside == [None] * 4


def test_an_abandoned_body_ends_the_request_once_when_it_is_closed(finished: Finished) -> None:
    made: list[Closing] = []
    body = call(served(keeping(made)))
    next(body)
    body.close()
    body.close()

    assert [marks is finished[0][0] for marks in made[0].seen] == [True, True, False]
    assert [record[4:6] for record in finished] == [("", 200)]
    assert records.current.get() is None


def test_exceptions_from_every_step_are_unchanged(finished: Finished) -> None:
    broken = ValueError("broken")

    def at_once(*_: Any) -> list[bytes]:
        raise broken

    def later(_: dict[str, Any], start_response: Start) -> Iterator[bytes]:
        ok(start_response)
        yield b"x"
        raise broken

    def closing(_: dict[str, Any], start_response: Start) -> Iterator[bytes]:
        ok(start_response)
        try:
            yield b"x"
        finally:
            raise broken

    def closed(body: Any) -> None:
        next(body)
        body.close()

    list(call(served(lambda *_: [])))
    caught: list[BaseException] = []
    for application, run in ((at_once, list), (later, list), (closing, closed)):
        with pytest.raises(ValueError, match="broken") as error:
            run(call(served(application)))
        caught.append(error.value)

    assert all(error is broken for error in caught)
    # One that starts no response is an error, too.
    assert [record[4:6] for record in finished] == [("", 500), *(("ValueError", status) for status in (500, 200, 200))]
    assert records.current.get() is None


def test_the_time_between_two_parts_is_the_server_writing(finished: Finished, now: list[int]) -> None:
    body = call(served(three))
    for step in (1_000, 2_000_000, 3_000_000):
        next(body)
        now[0] += step
    list(body)

    assert [mark for mark in finished.marks() if mark[0] == "network"] == [
        ("network", 1_000, 2_001_000),
        ("network", 2_001_000, 5_001_000),
    ]


def test_a_stream_has_first_chunk_time_and_longest_gap(finished: Finished, now: list[int]) -> None:
    def tokens(_: dict[str, Any], start_response: Start) -> Iterator[bytes]:
        ok(start_response)
        for pause, part in ((10, b""), (20, b"a"), (300, b"b"), (4, b"c")):
            now[0] += pause
            yield part

    list(call(served(tokens)))

    assert finished.marks()[-4:-2] == [("@first_token", 30, "first_chunk"), ("@gap", 300, "first_chunk")]


def test_a_body_of_a_known_length_is_no_stream(finished: Finished) -> None:
    def application(_: dict[str, Any], start_response: Start) -> list[bytes]:
        start_response("200 OK", [("Content-Length", "2")])
        return [b"a", b"b"]

    list(call(served(application)))
    list(call(served(text)))

    assert [mark for marks, *_ in finished for mark in marks[::3] if mark in {"@first_token", "@gap"}] == []


def read_in_every_way(stream: Any) -> bytes:
    buffer = bytearray(4)
    read = [stream.read(4), stream.readline(), *stream.readlines(6), stream.readinto(buffer), *stream]
    return repr((read, bytes(buffer), stream.tell())).encode()


def test_reading_the_body_is_network_by_every_method(finished: Finished) -> None:
    content = b"one\ntwo\nthree\nfour\nfive\n"

    def application(environ: dict[str, Any], start_response: Start) -> list[bytes]:
        ok(start_response)
        return [read_in_every_way(environ["wsgi.input"])]

    body = call(served(application), CONTENT_LENGTH=str(len(content)), **{"wsgi.input": io.BytesIO(content)})

    assert list(body) == [read_in_every_way(io.BytesIO(content))]
    # The rest, "five" and the end, line by line.
    assert finished.stages() == ["network"] * 7 + ["framework"]


def test_a_request_without_a_body_has_the_stream_of_the_server(finished: Finished) -> None:
    stream = io.BytesIO()
    environ = environment(**{"wsgi.input": stream, "CONTENT_LENGTH": ""})
    list(served(text)(environ, lambda *_: None))

    assert environ["wsgi.input"] is stream
    assert len(finished) == 1


def test_the_server_gets_the_very_body_of_the_application(finished: Finished) -> None:
    class Parts(list[bytes]):
        """A list that does something when it is iterated."""

        def __iter__(self) -> Iterator[bytes]:
            raise AssertionError

    proxy: Any = ObjectProxy(part for part in [b"fine"])
    for body in ([b"fine"], (), io.BytesIO(), Closing(lambda *_: None), map(bytes, [b"fine"]), Parts([b"fine"]), proxy):
        assert call(served(lambda *_, body=body: body)) is body
        assert "close" not in vars(body) if hasattr(body, "__dict__") else True
        del body
    del proxy

    assert len(finished) == 7


def test_a_generator_is_replaced_by_one_that_nobody_can_tell_from_it(finished: Finished) -> None:
    sent: list[Any] = []

    def parts(_: dict[str, Any], start_response: Start) -> Iterator[bytes]:
        ok(start_response)
        sent.append((yield b"one"))
        try:
            yield b"two"
        except LookupError as error:
            sent.append(error)
        yield b"three"
        return "result"

    body: Any = call(served(parts))
    error = LookupError()

    assert (type(body), body.__name__, body.__qualname__) == (GeneratorType, "parts", parts.__qualname__)
    assert (next(body), body.send(1), body.throw(error)) == (b"one", b"two", b"three")
    with pytest.raises(StopIteration) as last:
        next(body)
    assert (sent, last.value.value) == ([1, error], "result")
    assert [record[4:6] for record in finished] == [("", 200)]


def test_a_body_that_nobody_closes_ends_the_request_when_it_is_freed(finished: Finished) -> None:
    parts = three({}, lambda *_: None)
    bodies = [
        call(served(three)),
        call(served(lambda _, start_response: Closing(start_response))),
        # A generator that others refer to, which is closed.
        call(served(lambda *_: parts)),
    ]
    seen = len(finished)
    bodies.clear()

    assert (seen, len(finished)) == (0, 3)
    assert list(parts) == []


@pytest.mark.parametrize("outer", [list, iter, Closing.__iter__, lambda body: (part for part in body)])
def test_a_middleware_around_an_instrumented_application_keeps_its_steps(
    finished: Finished, outer: Callable[[Any], Any]
) -> None:
    made: list[Closing] = []
    body = call(served(lambda *arguments: outer(served(keeping(made))(*arguments))))
    parts = list(body)
    made[0].close()

    assert parts == [b"x"] * 3
    assert [marks is finished[0][0] for marks in made[0].seen[:4]] == [True] * 4
    assert len(finished) == 1
    assert ("@response_size", 3, 0) in finished.marks()


def test_an_object_that_is_returned_for_every_request_ends_all_but_the_last(finished: Finished) -> None:
    body = Closing(lambda *_: None)
    for _ in range(3):
        assert call(served(lambda *_: body)) is body

    assert len(finished) == 2


def test_start_response_is_that_of_the_server(finished: Finished) -> None:
    seen: list[Any] = []

    class Server:
        def start(self, status: str, headers: Any, exc_info: Any = None) -> None:
            seen.append((status, headers, exc_info))

    def application(_: dict[str, Any], start_response: Any) -> list[bytes]:
        seen.extend((start_response.__name__, start_response.__qualname__, start_response.__module__))
        seen.append(start_response.__self__)
        start_response("200 OK", [], exc_info=1)
        return []

    server = Server()
    start = server.start
    served(application)(environment(), start)

    assert seen == [start.__name__, start.__qualname__, start.__module__, server, ("200 OK", [], 1)]
    assert finished[0][4:6] == ("", 200)


def test_the_input_stream_is_all_that_the_stream_of_the_server_is(finished: Finished) -> None:
    content: Any = io.BytesIO(b"ping")

    def application(environ: dict[str, Any], start_response: Start) -> list[Any]:
        stream = environ["wsgi.input"]
        stream.note = "kept"
        seen = [isinstance(stream, io.IOBase), type(stream).__name__, repr(stream), hash(stream), dir(stream)]
        seen += [stream == content, bool(stream), stream.read.__name__, stream.read.__self__ is content, content.note]
        seen += [copy.copy(stream).read(), pickle.loads(pickle.dumps(stream)).note]  # noqa: S301 - our own
        with stream as entered:
            seen += [entered is stream, iter(stream) is stream, stream.read()]
        ok(start_response)
        return [seen, content.closed]

    seen, closed = call(served(application), CONTENT_LENGTH="4", **{"wsgi.input": content})

    assert seen[:5] == [True, "BytesIO", repr(content), hash(content), dir(content)]
    assert seen[5:] == [True, True, "read", True, "kept", b"ping", "kept", True, True, b"ping"]
    assert closed
    assert finished.stages()[0] == "network"


@pytest.mark.parametrize("checked", [True, False])
def test_the_wsgi_protocol_is_respected(finished: Finished, checked: bool) -> None:
    def echo(environ: dict[str, Any], start_response: Start) -> list[bytes]:
        content = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
        ok(start_response)
        return [content]

    out, errors = io.BytesIO(), io.StringIO()
    environ = {"REQUEST_METHOD": "POST", "CONTENT_LENGTH": "4", "SCRIPT_NAME": "", "PATH_INFO": "/"}
    environ |= {"SERVER_NAME": "here", "SERVER_PORT": "80", "QUERY_STRING": "", "SERVER_PROTOCOL": "HTTP/1.1"}
    handler = wsgiref.handlers.SimpleHandler(io.BytesIO(b"ping"), out, errors, environ)
    handler.run(validator(served(validator(echo))) if checked else served(echo))

    assert errors.getvalue() == ""
    assert out.getvalue().endswith(b"\r\n\r\nping")
    # It knows the length of a list of one part, and the validator's is none.
    assert (b"Content-Length: 4\r\n" in out.getvalue()) is not checked
    assert [record[4:6] for record in finished] == [("", 200)]


class FileWrapper:
    """A server's own: it sends the file without iterating, if it gets back the very object."""

    def __init__(self, file: io.BytesIO, size: int = 8192) -> None:
        self.file, self.size = file, size
        self.close = file.close


class FixedWrapper:
    """Wrapper of an extension module, which accepts no attribute."""

    __slots__ = ()

    def __init__(self, *_: Any) -> None: ...


@pytest.mark.parametrize("wrapper", [FileWrapper, FixedWrapper])
def test_a_file_is_returned_as_the_server_file_wrapper(finished: Finished, wrapper: type[Any]) -> None:
    file = io.BytesIO(b"content")

    def application(environ: dict[str, Any], start_response: Start) -> Any:
        ok(start_response)
        return environ["wsgi.file_wrapper"](file)

    body = call(served(application), **{"wsgi.file_wrapper": wrapper})
    returned = len(finished)
    if wrapper is FileWrapper:
        body.close()

    assert type(body) is wrapper
    assert (returned, len(finished), file.closed) == ((0, 1, True) if wrapper is FileWrapper else (1, 1, False))


def test_a_websocket_is_not_recorded(finished: Finished) -> None:
    seen: list[records.Marks | None] = []

    def application(_: dict[str, Any], start_response: Start) -> list[bytes]:
        seen.append(records.current.get())
        ok(start_response)
        return []

    call(served(application), HTTP_UPGRADE="WebSocket")

    assert seen == [None]
    assert list(finished) == []


def test_the_longer_of_two_waits_counts(finished: Finished, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy_waits, "trusted", ("*",))
    token = wsgi.waited_ns.set(3_000_000)
    try:
        for _ in range(2):
            list(call(served(text)))
        wsgi.waited_ns.set(3_000_000)
        list(call(served(text), HTTP_X_REQUEST_START=f"t={time.time() - 0.9:.3f}"))
    finally:
        wsgi.waited_ns.reset(token)

    waits = [[end - start for key, start, end in triples(marks) if key == "queue"] for marks, *_ in finished]

    assert waits[:2] == [[3_000_000], []]
    assert len(waits[2]) == 1
    assert waits[2][0] > 800_000_000


def triples(marks: records.Marks) -> list[tuple[str, Any, Any]]:
    return list(zip(marks[::3], marks[1::3], marks[2::3], strict=True))


@pytest.mark.filterwarnings("ignore:starlette.middleware.wsgi is deprecated")  # the only such adapter installed
def test_a_wsgi_application_mounted_in_an_asgi_one_is_one_request(finished: Finished) -> None:
    from starlette.applications import Starlette  # noqa: PLC0415 - instrumented only in this test
    from starlette.middleware.wsgi import WSGIMiddleware  # noqa: PLC0415
    from starlette.routing import Mount  # noqa: PLC0415

    seen: list[records.Marks | None] = []

    def application(_: dict[str, Any], start_response: Start) -> list[bytes]:
        seen.append(records.current.get())
        ok(start_response)
        return [b"inner"]

    with instrumenting(StarletteInstrumentor()):
        app = Starlette(routes=[Mount("/old", WSGIMiddleware(served(application)))])
        response = TestClient(app).get("/old/secret")

    assert response.text == "inner"
    assert [record[3:6] for record in finished] == [("/old", "", 200)]
    assert seen[0] is finished[0][0]


def test_requests_leave_no_work_for_the_garbage_collector(finished: Finished) -> None:
    class Server:
        """As in wsgiref and waitress: its method is `start_response`, and it holds the environment."""

        def run(self, app: Any) -> None:
            self.environ = environment()
            list(app(self.environ, self.start_response))

        def start_response(self, *_: Any) -> None: ...

    gc.collect()
    gc.disable()
    try:
        Server().run(served(text))
        left = sum(type(thing) in {wsgi.WsgiExchange, Server} for thing in gc.get_objects())
    finally:
        gc.enable()

    assert len(finished) == 1
    assert left == 0


@pytest.mark.parametrize(
    "internal",
    ["wsgi.record_request_head", "wsgi._attached", "wsgi.WsgiExchange.hand_over", "wsgi.ResponseStream.facts"],
)
def test_an_agent_failure_is_logged_once_and_the_application_responds(
    finished: Finished, reported: set[str], monkeypatch: pytest.MonkeyPatch, internal: str
) -> None:
    def broken(*_: Any) -> None:
        message = "ours"
        raise ZeroDivisionError(message)

    monkeypatch.setattr(f"stagelens.instrumentors.libraries.{internal}", broken)
    bodies = [b"".join(call(served(three))) for _ in range(3)]

    assert bodies == [b"xxx"] * 3
    assert len(reported) == 1
    assert len(finished) == (0 if internal.endswith(".record_request_head") else 3)
    assert records.current.get() is None
