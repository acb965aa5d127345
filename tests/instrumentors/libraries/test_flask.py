"""Flask: what is counted as a request, what as which stage, and that nothing else changes."""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import flask
import flask.json.provider
import pytest
from flask import Blueprint, Flask, Response, jsonify, request, send_file, stream_with_context
from flask.views import MethodView
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from werkzeug.test import EnvironBuilder

from stagelens.instrumentors import records
from stagelens.instrumentors.instrumentor import Instrumentor
from stagelens.instrumentors.libraries.flask import FlaskInstrumentor
from tests.instrumentors.libraries.drivers import request_wsgi
from tests.support.endpoint_work import WORK_NS, own_times, work

if TYPE_CHECKING:
    from conftest import Finished

INSTRUMENTOR = FlaskInstrumentor
pytestmark = pytest.mark.usefixtures("instrumented")


@pytest.fixture
def app() -> Flask:
    """An application whose views work, and whose framework works around them."""
    app = Flask(__name__, static_folder=None)
    part = Blueprint("part", __name__, url_prefix="/part")

    @app.get("/items/<int:item>")
    def item(item: int) -> dict[str, int]:
        work()
        return {"item": item}

    @app.get("/coroutine")
    async def coroutine() -> dict[str, int]:
        return item(1)

    class View(MethodView):
        def get(self) -> dict[str, int]:
            return item(1)

    @app.get("/stream")
    def stream() -> Any:
        def parts() -> Generator[str]:
            for n in range(3):
                marks = records.current.get()
                assert marks is not None
                marks.extend((f"part {n} of {request.path}", 1, 2))
                work()
                yield "x"

        return stream_with_context(parts())

    @app.post("/json")
    def read_json() -> Any:
        assert request.json is request.get_json()
        return jsonify(request.get_json())

    @app.before_request
    def before() -> Any:
        work()
        return ("no", 403) if request.headers.get("X-Refuse") else None

    @app.after_request
    def after(response: Response) -> Response:
        work()
        return response

    app.add_url_rule("/view", view_func=View.as_view("view"))
    app.post("/form")(lambda: request.form["a"])
    part.get("/things/<path:where>")(lambda where: where)
    app.register_blueprint(part)
    return app


def test_the_server_gets_the_body_of_flask(finished: Finished, app: Flask, instrumented: Instrumentor) -> None:
    app.add_url_rule("/file", view_func=lambda: send_file(__file__), endpoint="file")
    app.add_url_rule("/list", view_func=lambda: Response([b"a"], direct_passthrough=True), endpoint="list")
    app.add_url_rule(
        "/chars", view_func=lambda: Response(map(bytes, [b"a"]), direct_passthrough=True), endpoint="chars"
    )

    def seen(path: str, **headers: str) -> list[Any]:
        before = len(finished)
        environ = EnvironBuilder(path, headers=[*headers.items()]).get_environ()
        serve: Any = app
        body = serve(environ, lambda *_: None)
        found = [type(body), hasattr(body, "close"), hasattr(body, "__len__"), *getattr(body, "__dict__", ())]
        found += [list(body), list(body)]
        if hasattr(body, "close"):
            body.close()
        del body
        return [*found, len(finished) - before]

    requests = [("/items/1", {}), ("/file", {}), ("/file", {"Range": "bytes=2-5"}), ("/list", {}), ("/chars", {})]
    ours = [seen(path, **headers) for path, headers in requests]
    instrumented.uninstrument()
    without_us = [seen(path, **headers) for path, headers in requests]

    assert [found[:-1] for found in ours] == [found[:-1] for found in without_us]
    assert [found[-1] for found in ours] == [1] * 5


def test_wsgi_app_can_be_served_directly(finished: Finished, app: Flask) -> None:
    request_wsgi(app.wsgi_app, "GET", "/items/1")

    assert [record[3:6] for record in finished] == [("/items/<int:item>", "", 200)]


class OwnProvider(flask.json.provider.DefaultJSONProvider):
    def dumps(self, obj: Any, **_: Any) -> str:
        return json.dumps(obj)

    def loads(self, s: str | bytes, **_: Any) -> Any:
        return json.loads(s)


@pytest.mark.parametrize("provider", [flask.json.provider.DefaultJSONProvider, OwnProvider])
def test_json_is_read_in_network_and_parsed_and_written_in_serialize(
    finished: Finished, app: Flask, provider: type[flask.json.provider.JSONProvider]
) -> None:
    app.json = provider(app)
    response = request_wsgi(app, "POST", "/json", json={"n": 1})

    assert response.json == {"n": 1}
    assert finished.stages()[0] == "network"
    assert set(finished.stages()) == {"network", "serialize", "handler", "framework"}
    # Parsing, writing, and making the response; the default provider's own methods lie inside.
    assert finished.stages().count("serialize") == (5 if provider is not OwnProvider else 3)


def test_a_form_is_read_in_network_inside_serialize(finished: Finished, app: Flask) -> None:
    response = request_wsgi(app, "POST", "/form", data={"a": "1"})

    assert response.text == "1"
    marks = finished.marks()
    (_, read_from, read_to) = next(mark for mark in marks if mark[0] == "network")
    (_, parsed_from, parsed_to) = next(mark for mark in marks if mark[0] == "serialize")
    assert parsed_from <= read_from <= read_to <= parsed_to


@pytest.mark.parametrize(
    ("method", "path", "headers", "route", "status"),
    [
        ("GET", "/part/things/secret/9f8e", {}, "/part/things/<path:where>", 200),
        ("GET", "/items/7", {"X-Refuse": "1"}, "/items/<int:item>", 403),
        ("GET", "/items/secret", {}, "__unmatched__", 404),
        ("DELETE", "/items/7", {}, "__unmatched__", 405),
        ("GET", "/wp-login.php", {}, "__unmatched__", 404),
        ("GET", "/livez", {}, "__probes__", 404),
    ],
)
def test_the_route_is_a_template_never_a_path(  # noqa: PLR0917 - a table
    finished: Finished, app: Flask, method: str, path: str, headers: dict[str, str], route: str, status: int
) -> None:
    response = request_wsgi(app, method, path, headers=headers)

    assert response.status_code == status
    assert [record[3:6] for record in finished] == [(route, "", status)]


def test_a_dispatched_application_is_one_request_with_the_inner_route(finished: Finished, app: Flask) -> None:
    outer: Any = Flask("outer")
    outer.wsgi_app = DispatcherMiddleware(outer.wsgi_app, {"/inner": app.wsgi_app})

    assert request_wsgi(outer, "GET", "/inner/items/3").json == {"item": 3}
    assert [record[3] for record in finished] == ["/items/<int:item>"]


def test_a_stream_is_inside_its_request_to_the_last_part(finished: Finished, app: Flask) -> None:
    response = request_wsgi(app, "GET", "/stream")

    assert response.text == "xxx"
    assert [stage for stage in finished.stages() if stage.startswith("part")] == [
        f"part {n} of /stream" for n in range(3)
    ]
    assert {"@first_token", "@gap"} < finished.facts().keys()


@pytest.mark.parametrize("path", ["/items/1", "/coroutine", "/stream", "/view"])
def test_the_view_is_handler_and_the_rest_framework(finished: Finished, app: Flask, path: str) -> None:
    assert request_wsgi(app, "GET", path).status_code == 200
    own = own_times(finished)
    assert own["framework"] >= 2 * WORK_NS
    assert own["handler"] >= WORK_NS
    assert own["overhead"] == 0


def test_a_request_that_never_reaches_its_view_is_framework(finished: Finished, app: Flask) -> None:
    assert request_wsgi(app, "GET", "/items/1", headers={"X-Refuse": "1"}).status_code == 403
    assert own_times(finished)["framework"] >= 2 * WORK_NS
    assert own_times(finished).get("handler", 0) < WORK_NS
