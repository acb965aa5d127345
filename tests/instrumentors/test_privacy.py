"""Secrets are in all inputs, outputs and settings of services; no output of Stagelens contains one.

Real servers with every library we know run under `stagelens run` and report to a real collector, by a way that keeps
every byte. Each trace is kept.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import os
import socket
import sqlite3
import time
import urllib.request
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest
import zstandard

from stagelens.collector.serve import Collector, CollectorConfig
from stagelens.core import names
from stagelens.instrumentors.bootstrap import LIBRARIES
from stagelens.instrumentors.instrumentor import CallsInstrumentor, log_failure
from stagelens.store import Store
from tests.instrumentors.conftest import Service, plain
from tests.instrumentors.privacy.planted import LOG_VARIABLE, VISIBLE, found, secret
from tests.instrumentors.privacy.recording import Recording, Rpc, Sent, respond_with_secrets
from tests.support.http_server import http_server
from tests.support.long_flush_path import LONG_FLUSH
from tests.support.otlp_bodies import read_body
from tests.support.triton.triton_server import TritonServer, is_installed

pytestmark = pytest.mark.stacks

HERE = Path(__file__).parent
SERVICES = HERE / "privacy"


START_SECONDS = 120
COMMANDS = {
    "fastapi": "-m uvicorn fastapi_service:app --port {port} --log-level warning",
    "flask": "-m gunicorn flask_service:app --bind 127.0.0.1:{port} --worker-class gthread --threads 2",
    "django": "-m uvicorn django_service:app --port {port} --log-level warning",
    "aiohttp": "aiohttp_service.py {port} --token=" + secret("argument"),
}
# What the calls of a request count as, by route.
STAGES = {
    "/onnx": {"load", "forward"},
    "/magika": {"forward"},
    "/torch": {"load", "forward"},
    "/pipeline": {"load", "preprocess", "tokenize", "forward", "postprocess"},
    "/generate": {"load", "tokenize", "prefill", "decode", "postprocess"},
    "/embed": {"load", "preprocess", "forward", "postprocess"},
    "/threads": {"queue"},
    "/triton-http": {"serialize", "network"},
    "/triton-grpc": {"serialize", "network"},
    "/spans": {"queue", "network", "serialize"},
    **{
        f"/{client}": {"dependency"}
        for client in ("requests", "urllib3", "httpx", "httpx2", "aiohttp", "grpc", "openai")
    },
}
ITEMS = {
    "flask": "/items/<name>",
    "django": "/items/<str:name>",
    **dict.fromkeys(("fastapi", "aiohttp"), "/items/{name}"),
}
HEADERS = {
    "Authorization": f"Bearer {secret('authorization')}",
    "Cookie": f"session={secret('cookie')}",
    "Referer": f"https://{secret('refereruser')}@example.com/?q={secret('referer')}",
    "User-Agent": secret("useragent"),
    "Forwarded": f"for={secret('forwarded')}",
    "X-Request-Id": secret("requestid"),
    "X-Request-Start": f"t={secret('requeststart')}",
    "X-Force-Trace": secret("force"),
    f"X-{secret('headername')}": secret("headervalue"),
    "tracestate": f"vendor={secret('tracestate')}",
    "baggage": f"user={secret('baggage')}",
}
# A later version of the header may add a part.
TRACEPARENT = f"01-{'a' * 32}-{'b' * 16}-01-{secret('traceparent')}"
FORM = (
    f'--edge\r\nContent-Disposition: form-data; name="file"; filename="{secret("filename")}.png"\r\n\r\n'
    f'{secret("upload")}\r\n--edge\r\nContent-Disposition: form-data; name="field"\r\n\r\n{secret("field")}\r\n--edge--\r\n'
)


QUERY = f"{secret('querykey')}={secret('query')}&{quote('=' + secret('encoded'))}"


class Call(NamedTuple):
    method: str
    path: str
    body: str = ""
    kind: str = "application/json"


CALLS = (
    Call("POST", f"/items/{secret('parameter')}?{QUERY}", json.dumps({"text": secret("body"), secret("bodykey"): 1})),
    Call("POST", "/items/1", secret("notjson")),
    Call("POST", "/forms", FORM, "multipart/form-data; boundary=edge"),
    Call("GET", "/streams"),
    Call("GET", "/fails"),
    Call("GET", f"/{secret('path')}/{secret('path')}"),
    Call(secret("method").upper(), "/forms"),
)


@dataclass
class Seen:
    database: Path
    logs: dict[str, bytes]
    spans_of_theirs: bytes
    exports: list[Sent]
    # What Triton has sent to the collector by itself.
    others: list[Sent]
    metrics: bytes
    instrumented: dict[str, set[str]] = field(default_factory=dict[str, set[str]])

    def spans(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for sent in self.exports:
            for resource in read_body(sent.path, sent.raw).get("resourceSpans", ()):
                service = plain(resource["resource"]["attributes"])[names.SERVICE_NAME]
                for span in resource["scopeSpans"][0]["spans"]:
                    yield service, {**span, "attributes": plain(span["attributes"])}

    def stages(self) -> dict[tuple[str, str], set[str]]:
        spans = list(self.spans())
        routes = {span["spanId"]: span["attributes"].get(names.ROUTE) for _, span in spans}
        stages: dict[tuple[str, str], set[str]] = {}
        for service, span in spans:
            route = routes.get(span["parentSpanId"])
            if route is not None:
                stages.setdefault((service, route), set()).add(span["name"])
        return stages

    def rows(self) -> Iterator[tuple[str, bytes]]:
        """Yield every value of the database, with where it stands; packed ones also unpacked."""
        with contextlib.closing(sqlite3.connect(self.database)) as connection:
            for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
                for row in connection.execute(f"SELECT * FROM {table}"):  # noqa: S608 - a table's own name
                    for value in row:
                        content = value if isinstance(value, bytes) else str(value).encode()
                        yield table, content
                        with contextlib.suppress(zstandard.ZstdError):
                            yield table, zstandard.ZstdDecompressor().decompressobj().decompress(content)


class PrivateService(Service):
    def __init__(self, name: str, environment: Mapping[str, str], folder: Path) -> None:
        self.ours = folder / f"{name}.ours"
        env = {**environment, "OTEL_SERVICE_NAME": name, LOG_VARIABLE: str(self.ours)}
        super().__init__(*COMMANDS[name].split(), env=env, cwd=SERVICES)

    def wait(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            with contextlib.suppress(ConnectionError), socket.create_connection(("127.0.0.1", self.port)):
                return
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.05)

    def call(self, call: Call) -> tuple[int, bytes]:
        headers = {**HEADERS, "traceparent": TRACEPARENT, "Content-Type": call.kind}
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            connection.request(call.method, call.path, call.body or None, headers)
            response = connection.getresponse()
            return response.status, response.read()

    def get(self, path: str) -> bytes:
        status, body = self.call(Call("GET", path))

        assert status == 200, (path, self.log())
        return body


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Generator[Seen]:
    folder = tmp_path_factory.mktemp("privacy")
    log = folder / "collector.ours"
    with contextlib.ExitStack() as stack:
        stack.enter_context(_logged(log))
        store = stack.enter_context(contextlib.closing(Store.open(f"sqlite:///{folder}/stagelens.db")))
        collector = Collector(CollectorConfig(port=0), store)
        collector.start()
        stack.callback(collector.stop)
        recording = Recording(collector.address)
        recording.address = stack.enter_context(http_server(recording.respond)).url.removeprefix("http://")
        services, instrumented = _driven(stack, recording, folder)
        with urllib.request.urlopen("http://{}:{}/metrics".format(*collector.address), timeout=60) as response:
            metrics = response.read()
        collector.stop()
        yield Seen(
            folder / "stagelens.db",
            {path.name: path.read_bytes() for path in (log, *(service.ours for service in services))},
            (folder / "spans").read_bytes(),
            recording.ours,
            recording.others,
            metrics,
            instrumented,
        )


def _driven(
    stack: contextlib.ExitStack, recording: Recording, folder: Path
) -> tuple[list[PrivateService], dict[str, set[str]]]:
    http, rpc = stack.enter_context(http_server(respond_with_secrets)), stack.enter_context(Rpc())
    # Where it is not installed, nobody answers: what a client does then is timed all the same.
    triton = TritonServer(f"http://{recording.address}/v1/traces") if is_installed() else None
    addresses = (triton.http, triton.grpc) if triton else ("127.0.0.1:1", "127.0.0.1:1")
    environment = _environment(recording, folder, http.url.removeprefix("http://"), rpc.address, *addresses)
    services = {name: PrivateService(name, environment, folder) for name in COMMANDS}
    for service in services.values():
        stack.callback(service.stop)
    if triton is not None:
        stack.enter_context(triton)
    for name, service in services.items():
        service.wait()
        for call in CALLS:
            service.call(call)
        for path in STAGES if name == "fastapi" else ():
            service.get(path)
    instrumented = {name: set(json.loads(service.get("/instrumented"))) for name, service in services.items()}
    for service in services.values():
        service.stop()
    if triton is not None:
        # It sends what is left.
        triton.stop()
    return list(services.values()), instrumented


def _environment(recording: Recording, folder: Path, *upstreams: str) -> dict[str, str]:
    limits = dict.fromkeys(("SLOW", "ERRORS", "COLD", "UNIFORM"), "100")
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "STAGELENS_"))},
        **{f"STAGELENS_KEEP_{name}": count for name, count in limits.items()},
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{secret('endpointuser')}:{secret('endpoint')}@{recording.address}",
        "STAGELENS_FORCE_TRACE": secret("force"),
        "PRIVACY_FOLDER": str(folder),
        "PRIVACY_SPANS": str(folder / "spans"),
        "PRIVACY_UPSTREAMS": " ".join(upstreams),
        "OMP_NUM_THREADS": "1",
        # Whatever it costs, and as long as it takes.
        "STAGELENS_OVERHEAD_BUDGET": "none",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "60000",
        "PYTHONPATH": os.pathsep.join(
            [*filter(None, [os.environ.get("PYTHONPATH")]), LONG_FLUSH, str(HERE.parents[1])]
        ),
        secret("variable").upper(): secret("environment"),
        "DATABASE_URL": f"postgresql://{secret('databaseuser')}:{secret('databasepassword')}@127.0.0.1/db",
    }


@contextlib.contextmanager
def _logged(path: Path) -> Generator[None]:
    logger, handler = logging.getLogger("stagelens"), logging.FileHandler(path)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield
    logger.removeHandler(handler)
    logger.setLevel(level)
    handler.close()


BATCHERS = {"bentoml", "concurrent.futures", "gradio", "kserve", "litserve", "mlserver", "ray.serve"}
MODELS = {"diffusers", "inference_runtimes", "jax", "keras", "llama_cpp", "sklearn", "tensorflow", "vllm"}
# Servers record the path as its template, whatever its framework; `servers/` runs them.
FRAMEWORKS = {"litestar", "sanic", "tornado"}
# Libraries that note times and numbers of rows only, as the tests in `around/` and `models/` show.
CALLS_ONLY = {
    library.trigger
    for library in LIBRARIES
    if issubclass(library.load(), CallsInstrumentor) or library.module in MODELS
}


def test_every_instrumentor_recorded_requests(seen: Seen) -> None:
    stages = seen.stages()
    missing = {route: expected - stages.get(("fastapi", route), set()) for route, expected in STAGES.items()}

    # Batchers and process pools note times and sizes, of whichever job; they run for real in `batchers/`.
    assert {library.trigger for library in LIBRARIES} - set().union(
        *seen.instrumented.values()
    ) <= BATCHERS | FRAMEWORKS | CALLS_ONLY
    assert {route: stages for route, stages in missing.items() if stages} == {}
    for service, route in ITEMS.items():
        assert stages[service, route] >= {"network", "serialize"}
    # gunicorn's pool of threads.
    assert "queue" in stages["flask", ITEMS["flask"]]
    assert b"stagelens.kept" in seen.spans_of_theirs
    assert {sent.status for sent in seen.exports} == {200}
    # Triton tells the id of a request, which is the client's own text.
    assert any(found(sent.body) for sent in seen.others) == is_installed()


def test_every_forced_request_is_retained(seen: Seen) -> None:
    because = [span["attributes"].get(names.RETAINED_BECAUSE) for _, span in seen.spans()]

    assert because.count("forced") > len(CALLS) * len(COMMANDS)


def test_intended_attributes_are_exported(seen: Seen) -> None:
    assert any(found(sent.body, VISIBLE) for sent in seen.exports)
    assert {"series", "traces"} <= {table for table, content in seen.rows() if found(content, VISIBLE)}
    assert found(seen.spans_of_theirs, VISIBLE)


def test_no_secret_is_exported(seen: Seen) -> None:
    for sent in seen.exports:
        assert found(sent.head + sent.raw + sent.body) == ""
    assert found(seen.spans_of_theirs) == ""


def test_no_secret_is_in_the_database(seen: Seen) -> None:
    assert {(table, found(content)) for table, content in seen.rows() if found(content)} == set()
    for file in seen.database.parent.glob(f"{seen.database.name}*"):
        assert found(file.read_bytes()) == ""
    assert found(seen.metrics) == ""


def test_no_secret_is_in_a_stagelens_log_line(seen: Seen) -> None:
    for name, lines in seen.logs.items():
        assert (name, found(lines)) == (name, "")


def test_an_agent_failure_does_not_log_exceptions_of_the_host(
    reported: set[str], caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ValueError, match=secret("message")):
        _fail_while_theirs_passes()

    assert reported == {"a test"}
    assert "ZeroDivisionError" in caplog.text
    assert found(caplog.text.encode()) == ""


def _fail_while_theirs_passes() -> None:
    try:
        raise ValueError(secret("message"))
    finally:
        try:
            _ = 1 // 0
        except ZeroDivisionError:
            log_failure("a test")
