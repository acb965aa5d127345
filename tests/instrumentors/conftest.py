"""Shared fixtures of the tests of library modules."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from packaging.version import Version

from stagelens.core import names
from stagelens.core.partition import partition
from stagelens.instrumentors import instrumentor, listening_ports, recorder, records, scripts
from stagelens.instrumentors.agent.aggregate import dimensions_of
from stagelens.instrumentors.agent.spans import RetainedRequest, Trace, build_trace
from stagelens.instrumentors.instrumentor import Instrumentor
from stagelens.instrumentors.request_marks import read_marks
from tests.support.http_server import Request, Response, http_server
from tests.support.long_flush_path import LONG_FLUSH
from tests.support.otlp_bodies import read_body
from tests.support.ports import free_port

HERE = Path(__file__).parent
# Most tests are about services, where model calls outside of requests are not counted; also those of module-wide fixtures.
scripts.turn_off()


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("since"):
        distribution, first = mark.args
        if Version(version(distribution)) < Version(first):
            pytest.skip(f"since {distribution} {first}")


# Facts of every request.
COMMON_FACTS = frozenset({records.ARRIVAL, records.CALLED, "@request_size", "@response_size", "@user_agent"})


class Finished(deque[records.Record]):
    def clear(self) -> None:
        super().clear()
        recorder.forget_finished()

    def stages(self) -> list[str]:
        return [key for key, _, _ in self.marks() if not key.startswith("@")]

    def facts(self) -> dict[str, Any]:
        return {key: value for key, value, _ in self.marks()[1:] if key.startswith("@") and key not in COMMON_FACTS}

    def marks(self) -> list[tuple[str, Any, Any]]:
        (record,) = self
        marks: Iterable[Any] = iter(record[0])
        return list(zip(marks, marks, marks, strict=True))


@pytest.fixture(autouse=True)
def no_agent(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """Keep the background thread from starting in the process of the tests: it would take later tests' requests away."""
    monkeypatch.setattr(recorder.background, "wake_at", sys.maxsize)
    yield
    recorder.started.clear()
    recorder.pending.clear()


@pytest.fixture
def finished(monkeypatch: pytest.MonkeyPatch) -> Finished:
    records = Finished()
    monkeypatch.setattr(recorder, "pending", records)
    monkeypatch.setattr(recorder.background, "wake_at", recorder.MAX_PENDING)
    return records


@pytest.fixture
def script(finished: Finished, monkeypatch: pytest.MonkeyPatch) -> Finished:
    """Run the test as a plain script, which imports no server and listens on no port; plugins of pytest do."""
    monkeypatch.setattr(scripts, "on", True)
    monkeypatch.setattr(scripts, "SERVERS", ())
    monkeypatch.setattr(listening_ports, "exporter_ports", frozenset(listening_ports.open_ports()))
    return finished


def record(
    *triples: Iterable[Any], start: int = 0, end: int = 10_000_000, route: str = "/predict", **changes: Any
) -> records.Record:
    marks: list[Any] = [records.CLOSED, start, 0, *itertools.chain.from_iterable(triples)]
    fields = {"error_type": "", "http_status": 200, "kind": "server", **changes}
    return (marks, start, end, route, *fields.values())  # pyright: ignore[reportReturnType] - the order of the dictionary


class Clock:
    def __init__(self, now: int = 0) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now


class Device:
    """Reports the times of a model run once they are *known*; a broken one raises."""

    def __init__(self, *, known: bool = False, broken: bool = False) -> None:
        self.known = known
        self.broken = broken
        self.queried = self.asked = 0

    def ready(self) -> bool:
        self.queried += 1
        if self.broken:
            raise RuntimeError
        return self.known

    def marks(self) -> list[Any]:
        self.asked += 1
        if self.broken:
            raise RuntimeError
        return ["forward@gpu", 2, 7] if self.known else ["forward@launch", 2, 3]


def own_times(record: records.Record) -> dict[str, int]:
    return partition(read_marks(record[0]).intervals, record[1], record[2])


def trace_of(record: records.Record) -> Trace:
    dimensions = dimensions_of(read_marks(record[0]).facts, record[3])
    return build_trace(RetainedRequest(record, "forced", dimensions, set()))


@pytest.fixture
def sdk(monkeypatch: pytest.MonkeyPatch) -> Generator[Callable[..., Any]]:
    """Sets up the user's own OpenTelemetry SDK as their program would, and returns its exporter, in memory by default."""
    from opentelemetry import trace as api  # noqa: PLC0415 - most tests do without it
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor  # noqa: PLC0415
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter  # noqa: PLC0415

    providers: list[TracerProvider] = []
    monkeypatch.setattr("stagelens.instrumentors.export.user_spans.MAX_SECONDS", 60)

    def set_up(sampler: Any = None, exporter: Any = None) -> Any:
        exporter = exporter or InMemorySpanExporter()
        providers.append(provider := TracerProvider(sampler=sampler))
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        monkeypatch.setattr(api, "_TRACER_PROVIDER", provider)
        return exporter

    yield set_up
    for provider in providers:
        provider.shutdown()


@pytest.fixture
def exported(sdk: Callable[..., Any]) -> Any:
    return sdk()


@pytest.fixture
def in_a_request(finished: Finished) -> Generator[Finished]:
    """Run the test inside a request; what it recorded is in the fixture afterwards."""
    opened = recorder.begin()
    assert opened is not None
    marks, token = opened
    finished.append((marks, marks[1], 0, "", "", 0, "internal"))
    yield finished
    recorder.end(token)


@pytest.fixture
def make_fail(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any, str], None]:
    def broken(*_: Any) -> Any:
        message = "ours"
        raise ZeroDivisionError(message)

    return lambda owner, name: monkeypatch.setattr(owner, name, broken)


@pytest.fixture
def reported(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    places: set[str] = set()
    monkeypatch.setattr(instrumentor, "_reported", places)
    return places


@contextlib.contextmanager
def using(*instrumentors: Instrumentor) -> Generator[None]:
    with contextlib.ExitStack() as stack:
        for module in instrumentors:
            module.instrument()
            stack.callback(module.uninstrument)
        yield


@pytest.fixture
def instrumented(request: pytest.FixtureRequest) -> Generator[Instrumentor]:
    module: Instrumentor = request.module.INSTRUMENTOR()
    with using(module):
        yield module


class Post(Request):
    @cached_property
    def decoded(self) -> dict[str, Any]:
        return read_body(self.path, self.body)

    @property
    def name(self) -> str:
        return self.headers.get(names.BATCH_HEADER.lower(), "")

    def resource(self) -> dict[str, Any]:
        (resource,) = self.decoded["resourceMetrics"]
        return plain(resource["resource"]["attributes"])

    def points(self, metric: str) -> list[dict[str, Any]]:
        return [
            {**point, "attributes": plain(point["attributes"])}
            for resource in self.decoded["resourceMetrics"]
            for item in resource["scopeMetrics"][0]["metrics"]
            if item["name"] == metric
            for point in (item.get("exponentialHistogram") or item["sum"])["dataPoints"]
        ]


class Sink:
    """Collector that sends the next of *answers*, each raw bytes or (status, headers, body); 200 if there is none."""

    def __init__(self) -> None:
        self.address = ""
        self.posts: list[Post] = []
        self.answers: deque[Response] = deque()
        # Held: posts are received but not answered.
        self.answering = threading.Event()
        self.answering.set()

    def respond(self, request: Request) -> Response:
        self.posts.append(Post(**vars(request)))
        response = self.answers.popleft() if self.answers else (200, {"Content-Type": "application/x-protobuf"}, b"")
        self.answering.wait(60)
        return response

    def environment(self, **more: str) -> dict[str, str]:
        """Return this process's environment with an agent that reports here, soon, and keeps every trace, whatever that costs.

        It has the time it takes: at its end, too.
        """
        ours = {name for name in os.environ if name.startswith(("OTEL_", "STAGELENS_")) or name == "PYTHONPATH"}
        return {
            **{name: value for name, value in os.environ.items() if name not in ours},
            "OTEL_EXPORTER_OTLP_ENDPOINT": self.address,
            "OTEL_EXPORTER_OTLP_TIMEOUT": "60000",
            # Its libraries are those of this process: `make test-oldest`.
            "PYTHONPATH": os.pathsep.join(filter(None, (LONG_FLUSH, os.environ.get("PYTHONPATH")))),
            "STAGELENS_EXPORT_INTERVAL": "200ms",
            "STAGELENS_KEEP_SLOW": "100",
            "STAGELENS_OVERHEAD_BUDGET": "none",
            **more,
        }

    def metrics(self) -> list[Post]:
        return [post for post in self._metrics() if not post.points(names.REQUEST_BY_ATTRIBUTE)]

    def attributes(self) -> list[Post]:
        return [post for post in self._metrics() if post.points(names.REQUEST_BY_ATTRIBUTE)]

    def requests(self, **attributes: str) -> int:
        """Return how many requests with *attributes* arrived; a batch that arrived again counts once."""
        points = [point for post in self._once() for point in post.points(names.REQUEST_DURATION)]
        named = [({key.replace(".", "_"): value for key, value in each["attributes"].items()}, each) for each in points]
        return sum(int(point["count"]) for found, point in named if attributes.items() <= found.items())

    def dropped(self) -> dict[str, int]:
        points = [point for post in self._once() for point in post.points(names.REQUESTS_DROPPED)]
        return {point["attributes"]["reason"]: int(point["asInt"]) for point in points}

    def instances(self) -> set[str]:
        return {post.resource()["service.instance.id"] for post in self._metrics()}

    def stages(self) -> set[str]:
        points = [point for post in self._metrics() for point in post.points(names.STAGE_DURATION)]
        return {point["attributes"]["inference.stage"] for point in points}

    def points(self) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
        for post in self._metrics():
            for name in names.METRICS:
                for point in post.points(name):
                    yield name, post.resource(), point

    def spans(self) -> Iterator[dict[str, Any]]:
        for post in self.posts[:]:
            for resource in post.decoded["resourceSpans"] if post.path == "/v1/traces" else ():
                for span in resource["scopeSpans"][0]["spans"]:
                    yield {**span, "attributes": plain(span["attributes"])}

    def _metrics(self) -> list[Post]:
        return [post for post in self.posts[:] if post.path == "/v1/metrics"]

    def _once(self) -> Iterable[Post]:
        return {post.name or id(post): post for post in self._metrics()}.values()


def plain(attributes: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        item["key"]: int(item["value"]["intValue"]) if "intValue" in item["value"] else item["value"]["stringValue"]
        for item in attributes
    }


@pytest.fixture
def sink() -> Generator[Sink]:
    sink = Sink()
    with http_server(sink.respond, protocol="HTTP/1.0") as server:
        sink.address = server.url
        yield sink
        sink.answering.set()


class Service:
    """A Python server of its own process group under `stagelens run`."""

    def __init__(self, *words: str, env: Mapping[str, str], cwd: Path = HERE) -> None:
        self.port = free_port()
        command = [sys.executable, "-m", "stagelens", "run", "--", sys.executable]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the service
        self.process = subprocess.Popen(
            [*command, *(word.format(port=self.port) for word in words)],
            cwd=cwd,
            env=dict(env),
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )

    def send_request(
        self, path: str, body: bytes | None = None, headers: Mapping[str, str] = MappingProxyType({})
    ) -> Any:
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", body, dict(headers))
        deadline = time.monotonic() + 60
        while True:
            try:
                with urllib.request.urlopen(request, timeout=60) as response:
                    return json.loads(response.read())
            except (urllib.error.URLError, ConnectionError) as error:
                refused = isinstance(getattr(error, "reason", error), ConnectionError)
                if not refused or time.monotonic() > deadline or self.process.poll() is not None:
                    raise AssertionError(self.log()) from error
            time.sleep(0.05)

    def log(self) -> str:
        # Where the service writes next is not to be moved by who reads.
        return os.pread(self._log.fileno(), os.fstat(self._log.fileno()).st_size, 0).decode()

    def stop(self) -> int:
        self.process.terminate()
        try:
            return self.process.wait(60)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self._log.close()


@pytest.fixture
def serve(sink: Sink) -> Generator[Callable[..., Service]]:
    with contextlib.ExitStack() as stack:

        def start(*arguments: str, cwd: Path = HERE, **variables: str) -> Service:
            uvicorn = ("-m", "uvicorn", *arguments, "--port", "{port}")
            service = Service(*uvicorn, env=sink.environment(**variables), cwd=cwd)
            stack.callback(service.stop)
            return service

        yield start


def until(condition: Callable[[], object], what: str = "what the test expects") -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, f"waited a minute for {what}"
        time.sleep(0.02)


@pytest.fixture(name="until")
def until_fixture() -> Callable[[Callable[[], object], str], None]:
    return until
