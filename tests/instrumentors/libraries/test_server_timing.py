"""`Server-Timing` of an instrumented service: content, conditions, and an instrumented client that reads it."""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from fastapi import FastAPI, Response

from stagelens import stage
from stagelens.core.partition import partition
from stagelens.instrumentors import recorder, records
from stagelens.instrumentors.libraries import asgi, server_reports
from stagelens.instrumentors.libraries.httpx import HttpxInstrumentor
from stagelens.instrumentors.libraries.server_reports import parse_server_timing
from stagelens.instrumentors.libraries.starlette import StarletteInstrumentor
from stagelens.instrumentors.request_marks import read_marks
from tests.instrumentors.libraries.drivers import instrumenting
from tests.support.uvicorn_server import uvicorn_server

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Finished

    Until = Callable[[Callable[[], object], str], None]

INSTRUMENTOR = StarletteInstrumentor
pytestmark = pytest.mark.usefixtures("instrumented")

THEIRS = "db;dur=53, app;desc=all;dur=60"
app = FastAPI()


@app.get("/predict")
async def predict() -> str:
    """Work for a while, in stages of ours and one of the user's own."""
    with stage("forward"):
        time.sleep(0.004)  # noqa: ASYNC251 - a model that holds the loop
    with stage("rerank"):
        time.sleep(0.002)  # noqa: ASYNC251 - as above
    return "done"


@app.get("/theirs")
async def theirs(response: Response, header: str) -> str:
    response.headers["Server-Timing"] = header
    return "done"


@pytest.fixture
def enabled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asgi, "sends_server_timing", True)


@pytest.fixture
def url() -> Generator[str]:
    with uvicorn_server(app) as url:
        yield url


@pytest.mark.usefixtures("enabled")
def test_a_response_header_has_the_stages_before_the_response(finished: Finished, url: str, until: Until) -> None:
    reported = {
        name: float(value)
        for name, value in parse_server_timing(httpx.get(f"{url}/predict", timeout=60).headers["Server-Timing"]).items()
    }
    until(lambda: finished, "the server's request")
    own = partition(read_marks(finished[0][0]).intervals, *finished[0][1:3])

    assert 4 <= reported["forward"] <= own["forward"] / 1e6
    assert set(reported) <= {*own, "total"} - {"overhead", "rerank", "framework", "handler"}
    assert sum(reported.values()) - reported["total"] <= reported["total"] - 2
    assert reported["total"] <= (finished[0][2] - finished[0][1]) / 1e6


@pytest.mark.usefixtures("finished")
def test_server_timing_is_off_by_default(url: str) -> None:
    assert "Server-Timing" not in httpx.get(f"{url}/predict", timeout=60).headers


@pytest.mark.usefixtures("enabled", "finished")
@pytest.mark.parametrize("theirs", [THEIRS, "queue;dur=5, total;dur=9"])
def test_server_timing_metrics_of_the_service_are_preserved(url: str, theirs: str) -> None:
    headers = httpx.get(f"{url}/theirs", params={"header": theirs}, timeout=60).headers

    # Stages of another server are passed through.
    assert headers.get_list("Server-Timing")[0] == theirs
    assert len(headers.get_list("Server-Timing")) == (2 if theirs is THEIRS else 1)
    assert set(parse_server_timing(headers["Server-Timing"])) >= {"total"}


@pytest.mark.usefixtures("enabled")
def test_an_instrumented_client_records_the_server_stages(finished: Finished, url: str, until: Until) -> None:
    with instrumenting(HttpxInstrumentor()):
        scope = recorder.begin()
        assert scope is not None
        marks, token = scope
        httpx.get(f"{url}/predict", timeout=60)
        recorder.end(token)
        ended = records.clock()
    own = partition(read_marks(marks).intervals, marks[1], ended)

    assert 4e6 <= own["forward"] <= ended - marks[1]
    assert own["network"] > 0
    assert sum(own.values()) == ended - marks[1]
    assert "@suspect" not in marks
    # Its caller has the answer before the server is done with the request.
    until(lambda: len(finished) == 1, "the server's request")


@pytest.mark.usefixtures("enabled")
def test_an_agent_failure_drops_the_header_not_the_response(
    finished: Finished, url: str, until: Until, reported: set[str], make_fail: Callable[[Any, str], None]
) -> None:
    make_fail(server_reports, "format_server_timing")

    assert httpx.get(f"{url}/predict", timeout=60).json() == "done"
    assert "sending Server-Timing" in reported
    # Its caller has the answer before the server is done with the request.
    until(lambda: len(finished) == 1, "the server's request")
