"""What holds for every library, whatever it does; `drivers.py` says how each is called.

`test_never_hurts.py` looks at what is patched, in every library; these tests call it.
"""

from __future__ import annotations

import contextvars
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from stagelens.instrumentors import named_attributes, recorder, records
from stagelens.instrumentors.api import request
from stagelens.instrumentors.instrumentor import Instrumentor
from stagelens.instrumentors.libraries import proxy_waits
from tests.instrumentors.libraries.drivers import CALLS, SERVERS, Call, Server, configure_django, stages_of

if TYPE_CHECKING:
    from conftest import Finished

STACKS = {"sentence_transformers"}
INSTRUMENTORS = "stagelens.instrumentors"


def named(drivers: Any) -> list[Any]:
    return [pytest.param(name, marks=pytest.mark.stacks if name in STACKS else ()) for name in drivers]


def classes_of(names: str) -> list[type[Instrumentor]]:
    pairs = [name.partition(":")[::2] for name in names.split()]
    return [getattr(import_module(f"{INSTRUMENTORS}.libraries.{module}"), name) for module, name in pairs]


@pytest.fixture
def instrument() -> Generator[Callable[[str], None]]:
    with ExitStack() as stack:

        def instrument(names: str) -> None:
            for cls in classes_of(names):
                cls().instrument()
                stack.callback(cls().uninstrument)

        yield instrument


def fail(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError(path)

    monkeypatch.setattr(f"{INSTRUMENTORS}.{path}", broken)


@pytest.fixture(params=named(CALLS))
def library(request: pytest.FixtureRequest, instrument: Callable[[str], None]) -> Call:
    driver = CALLS[request.param]
    instrument(driver.instrumentors)
    return driver


def in_a_request(call: Callable[[], Any]) -> tuple[Any, records.Marks]:
    """Return the result of *call* in a request, and the marks of that."""
    marks, token = recorder.begin() or pytest.fail("a request runs already")
    try:
        return call(), marks
    finally:
        recorder.end(token)


def test_a_call_is_recorded_once_in_its_request_alone(library: Call, finished: Finished) -> None:
    with library.make() as call:
        outside = call()
        with request("ended"):
            task = contextvars.copy_context()
        task.run(call)
        before = len(finished)
        inside, marks = in_a_request(call)
        for cls in classes_of(library.instrumentors) * 2:
            cls().instrument(skip_dep_check=True)
        _, again = in_a_request(call)

    assert before == len(finished) == 1
    assert "forward" not in finished.stages()
    assert {"@model", "@batch", "@first_token", "@tokens_out"}.isdisjoint(finished.facts())
    assert inside == outside
    assert stages_of(marks) == stages_of(again) == list(library.stages)


def test_requests_at_the_same_time_do_not_mix(library: Call, finished: Finished) -> None:
    together = threading.Barrier(3, timeout=60)

    def serve(calls: int) -> None:
        opened = recorder.begin()
        assert opened is not None
        marks, token = opened
        together.wait()
        for _ in range(calls):
            call()
        recorder.end(token)
        recorder.finish(marks, marks[1], records.clock(), str(calls))

    with library.make() as call:
        threads = [threading.Thread(target=serve, args=(calls,)) for calls in (1, 2, 3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    stages = {route: stages_of(marks) for marks, _, _, route, *_ in finished}
    assert stages == {str(calls): sorted(library.stages * calls) for calls in (1, 2, 3)}


@pytest.mark.parametrize("name", named(name for name, driver in CALLS.items() if driver.failing))
def test_a_failure_of_ours_in_a_call_is_logged_once(  # noqa: PLR0917 - fixtures
    name: str,
    instrument: Callable[[str], None],
    finished: Finished,
    reported: set[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    library = CALLS[name]
    with library.make() as call:
        expected = call()
    instrument(library.instrumentors)
    fail(monkeypatch, library.failing)
    with caplog.at_level(logging.WARNING, "stagelens"), library.make() as call:
        results, marks = in_a_request(lambda: [call(), call()])

    assert results == [expected] * 2
    assert stages_of(marks) == sorted(library.stages * 2)
    assert len([record for record in caplog.records if record.name == "stagelens"]) == len(reported) == 1
    assert not finished


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest, instrument: Callable[[str], None]) -> Server:
    driver = SERVERS[request.param]
    instrument(driver.instrumentor)
    return driver


def test_a_request_is_counted_once_however_often_it_is_instrumented(server: Server, finished: Finished) -> None:
    with server.make() as send:
        send("/items/7?secret=1", headers={"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"})
        once = finished.stages()
        ((_, started, ended, *outcome),) = finished
        facts = finished.facts()
        finished.clear()
        for cls in classes_of(server.instrumentor) * 2:
            cls().instrument(skip_dep_check=True)
        status, _ = send("/items/7")

    assert status == 200
    assert outcome == [server.route, "", 200, "server"]
    assert ended > started
    assert facts == {"@method": "GET", "@traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}
    assert set(server.stages) <= set(once)
    assert sorted(set(finished.stages()) - {"network"}) == sorted(set(once) - {"network"})
    assert finished.stages().count("serialize") == once.count("serialize")


def test_the_head_of_a_request_is_read(server: Server, finished: Finished, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAGELENS_FORCE_TRACE", "please")
    monkeypatch.setattr(proxy_waits, "trusted", proxy_waits.trusted_networks("127.0.0.0/8"))
    monkeypatch.setattr(proxy_waits, "clocks", {})
    monkeypatch.setattr(named_attributes, "sources", named_attributes.parse("tenant=header:X-Tenant,plan=baggage:plan"))
    headers = {
        "X-Request-Start": f"t={time.time() - 0.5:.3f}",
        "X-Force-Trace": "please",
        "X-Tenant": "acme",
        "X-Other": "secret",
        "Baggage": "user=secret, plan=gold%20plus;ttl=3",
        "Tracestate": "vendor=1,stagelens=checkout",
    }
    with server.make() as send:
        _, body = send("/items/7", "x" * 1000, headers)

    ((_, t0, t1, *_),) = finished
    (queue,) = [mark for mark in finished.marks() if mark[0] == "queue" and mark[1] == t0]
    assert 490_000_000 <= queue[2] - t0 < t1 - t0
    facts = {key: value for key, value, _ in finished.marks()}
    assert (facts["@force"], facts["@caller"]) == (1, headers["Tracestate"])
    assert (facts["@request_size"], int(facts["@response_size"])) == ("1002", len(body))
    attributes = [value for key, value, _ in finished.marks() if key == records.ATTRIBUTE]
    assert attributes == [("tenant", "acme"), ("plan", "gold plus")]
    assert "secret" not in repr(finished)


def test_an_exception_is_an_error_by_its_name(server: Server, finished: Finished) -> None:
    with server.make() as send:
        status, _ = send("/items/broken")

    assert status == 500
    assert [record[3:6] for record in finished] == [(server.route, "LookupError", 500)]


def test_nothing_but_method_template_and_status_is_recorded(server: Server, finished: Finished) -> None:
    secret = "hunter2"  # noqa: S105 - planted
    headers = {"X-Token": secret, "Cookie": f"session={secret}", "Authorization": secret}
    with server.make() as send:
        status, body = send(f"/items/{secret}?{secret}", {"password": secret}, headers)
        missing, _ = send(f"/not/{secret}", None, headers)

    assert (status, missing, body.count(secret)) == (200, 404, 2)
    assert len(finished) == 2
    assert secret not in repr(finished)


@pytest.mark.parametrize(
    ("name", "failing"), [(name, failing) for name, driver in SERVERS.items() for failing in driver.failing.split()]
)
def test_a_failure_of_ours_in_a_request_is_logged_once(  # noqa: PLR0917 - fixtures and parameters
    name: str,
    failing: str,
    instrument: Callable[[str], None],
    finished: Finished,
    reported: set[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    instrument(SERVERS[name].instrumentor)
    fail(monkeypatch, f"libraries.{failing}")
    with caplog.at_level(logging.WARNING, "stagelens"), SERVERS[name].make() as send:
        statuses = [send(f"/items/{item}")[0] for item in ("7", "7", "broken", "broken")]

    assert statuses == [200, 200, 500, 500]
    assert [record[5] for record in finished] == ([] if failing.endswith("read_head") else statuses)
    # One names both the route and the error.
    assert len(reported) == (2 if failing == "django._exchange_of" else 1)
    assert len([record for record in caplog.records if record.name == "stagelens"]) == len(reported)
    assert records.current.get() is None


@pytest.mark.parametrize("ours_first", [True, False])
@pytest.mark.filterwarnings("ignore:Inheritance class _InstrumentedApplication")  # how OpenTelemetry patches aiohttp
def test_opentelemetry_beside_us_causes_no_duplicates(server: Server, finished: Finished, ours_first: bool) -> None:
    spans, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    module, _, name = server.theirs.partition(":")
    theirs = getattr(import_module(f"opentelemetry.instrumentation.{module}"), name)()
    (ours,) = classes_of(server.instrumentor)
    if not ours_first:
        ours().uninstrument()
    configure_django()
    theirs.instrument(tracer_provider=provider, skip_dep_check=True)
    ours().instrument()
    try:
        with server.make() as send:
            status, _ = send("/items/7")
    finally:
        theirs.uninstrument()

    assert status == 200
    assert len([span for span in spans.get_finished_spans() if span.kind == SpanKind.SERVER]) == 1
    assert [record[3:6] for record in finished] == [(server.route, "", 200)]


USED = """
import stagelens, sys
stagelens.instrument()
from tests.instrumentors.libraries import drivers
print(drivers.use(sys.argv[1]))
"""


@pytest.mark.parametrize("name", named({**CALLS, **SERVERS}))
def test_a_library_that_is_imported_later_is_timed(name: str) -> None:
    completed = subprocess.run(
        [sys.executable, "-c", USED, name],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[3],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": ""},
    )

    assert set(completed.stdout.split()) >= set({**CALLS, **SERVERS}[name].stages), completed.stderr
