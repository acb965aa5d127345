"""Server reports of every dialect, with every client: the call becomes server stages and `network`."""

from __future__ import annotations

import json
import logging
import pickle
import time
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import httpx
import pytest
import requests

from stagelens.core.partition import partition
from stagelens.instrumentors import records
from stagelens.instrumentors.libraries import server_reports as module
from stagelens.instrumentors.libraries.client_common import record_headers, reports_in_body
from stagelens.instrumentors.libraries.server_reports import BODIES, HEADERS, Wait
from stagelens.instrumentors.request_marks import read_marks
from tests.instrumentors.libraries import drivers
from tests.support.http_server import Request, Response, http_server

if TYPE_CHECKING:
    from conftest import Running

pytestmark = pytest.mark.usefixtures("clients")

# What each server works before it answers, which it says it did: the wait for it is longer for certain.
WORK_SECONDS = 0.02
MS = 1_000_000


class ReportCase(NamedTuple):
    """Response headers of a server, and the expected stages in milliseconds."""

    headers: dict[str, str]
    stages: dict[str, float]


REPORT_CASES = {
    # As `generate` of router/src/server.rs sets them, text-generation-inference 2 and 3.
    "tgi": ReportCase(
        {
            "x-compute-time": "0.018",
            "x-total-time": "18",
            "x-validation-time": "1",
            "x-queue-time": "4",
            "x-inference-time": "12",
        },
        {"preprocess": 1, "queue": 4, "decode": 12, "dependency": 1},
    ),
    # https://docs.fireworks.ai/api-reference/post-completions: of a dedicated deployment, all of them.
    "fireworks": ReportCase(
        {
            "fireworks-server-time-to-first-token": "0.008",
            "fireworks-server-processing-time": "0.018",
            "fireworks-tokenizer-queue-duration": "0.001",
            "fireworks-tokenizer-duration": "0.001",
            "fireworks-prefill-queue-duration": "0.002",
            "fireworks-prefill-duration": "0.003",
            "fireworks-generation-queue-duration": "0.001",
            "fireworks-generation-duration": "0.009",
        },
        {"queue": 4, "tokenize": 1, "prefill": 3, "decode": 9, "dependency": 1},
    ),
    # The same, serverless: what came before the first token is not split.
    "fireworks, serverless": ReportCase(
        {"fireworks-server-time-to-first-token": "0.008", "fireworks-server-processing-time": "0.018"},
        {"dependency": 8, "decode": 10},
    ),
    # Of a stream the headers leave before there is a total.
    "fireworks, a stream": ReportCase({"fireworks-server-time-to-first-token": "0.008"}, {"dependency": 8}),
    # https://platform.openai.com/docs/api-reference/debugging-requests, with the proxy's own header, as they come.
    "openai": ReportCase({"openai-processing-ms": "18", "x-envoy-upstream-service-time": "19"}, {"dependency": 18}),
    # https://www.envoyproxy.io/docs/envoy/latest/configuration/http/http_filters/router_filter
    "envoy": ReportCase({"x-envoy-upstream-service-time": "18"}, {"dependency": 18}),
    # https://www.w3.org/TR/server-timing/, with metrics that are nobody's stage.
    "server-timing": ReportCase(
        {"Server-Timing": 'cdn-cache;desc="HIT, edge", Queue;dur=2.5, forward;desc=model;dur=12, total;dur=18'},
        {"queue": 2.5, "forward": 12, "dependency": 3.5},
    ),
}
SAID_IN_BODIES: dict[str, tuple[dict[str, Any], dict[str, float]]] = {
    # https://docs.vllm.ai/en/stable/features/per_request_metrics/
    "vllm": (
        {"metrics": {"time_to_first_token_ms": 3.2, "generation_time_ms": 10.5, "queue_time_ms": 1.3}},
        {"queue": 1.3, "prefill": 3.2, "decode": 10.5},
    ),
    # llama.cpp's server, tools/server/README.md
    "llama.cpp": (
        {"content": "x", "timings": {"cache_n": 236, "prompt_ms": 3.958, "predicted_ms": 14.064}},
        {"prefill": 3.958, "decode": 14.064},
    ),
    # groq-python, types/completion_usage.py: `total_time` is "completion time and prompt time combined".
    "groq": (
        {
            "usage": {
                "queue_time": 0.004,
                "prompt_time": 0.000680594,
                "completion_time": 0.012333333,
                "total_time": 0.013013927,
            }
        },
        {"queue": 4, "prefill": 0.680594, "decode": 12.333333},
    ),
    # https://inference-docs.cerebras.ai/api-reference/chat-completions
    "cerebras": (
        {
            "time_info": {
                "queue_time": 0.000073161,
                "prompt_time": 0.00107448,
                "completion_time": 0.005658071,
                "total_time": 0.018,
            }
        },
        {"queue": 0.073161, "prefill": 1.07448, "decode": 5.658071, "dependency": 11.194288},
    ),
    # https://docs.fireworks.ai/api-reference/post-completions, `perf_metrics_in_response`
    "fireworks": (
        {"perf_metrics": {"prompt-tokens": 4, "server-time-to-first-token": "0.008", "server-processing-time": 0.018}},
        {"dependency": 8, "decode": 10},
    ),
    # https://docs.ollama.com/api/usage
    "ollama": (
        {
            "total_duration": 17456033,
            "load_duration": 10139708,
            "prompt_eval_duration": 1307479,
            "eval_duration": 5247970,
        },
        {"queue": 10.139708, "prefill": 1.307479, "decode": 5.24797, "dependency": 0.760876},
    ),
}
IMPOSSIBLE = {
    "more than the call took": {"openai-processing-ms": "86000"},
    "longer than any call": {"openai-processing-ms": "1e300"},
    "parts of more than the whole": {"x-validation-time": "9", "x-inference-time": "9", "x-total-time": "12"},
    "negative": {"Server-Timing": "queue;dur=-1, total;dur=5"},
    "no number": {"x-envoy-upstream-service-time": "-"},
    "nan": {"Server-Timing": "total;dur=nan"},
    "infinite": {"openai-processing-ms": "inf"},
    "a first token after the end": {
        "fireworks-server-time-to-first-token": "0.012",
        "fireworks-server-processing-time": "0.006",
    },
    "milliseconds for seconds": {
        "fireworks-server-time-to-first-token": "8",
        "fireworks-server-processing-time": "18",
    },
    "seconds for milliseconds": {"x-validation-time": "0.001", "x-inference-time": "0.017", "x-total-time": "0.018"},
    "said by two": {"Server-Timing": "queue;dur=1, queue;dur=2"},
}


@pytest.fixture(scope="module")
def saying() -> Generator[Callable[..., str]]:
    """Set the reports of a server, which works for a while; return its address."""
    reports: dict[str, Any] = {}

    def respond(_: Request) -> Response:
        time.sleep(WORK_SECONDS)
        return 200, {"Content-Type": "application/json", **reports["headers"]}, json.dumps(reports["body"]).encode()

    with http_server(respond) as server:

        def say(headers: dict[str, str], body: dict[str, Any] | None = None) -> str:
            reports.update(headers=headers, body=body or {})
            return server.url

        yield say


def _get(url: str) -> Any:
    return httpx.get(url, timeout=60)


CALLS: dict[str, Callable[[str], Any]] = {
    "httpx": drivers.get_by_httpx,
    "httpx, async": drivers.get_by_async_httpx,
    "httpx2": drivers.get_by_httpx2,
    "requests": drivers.get_by_requests,
    "requests, streamed": lambda url: requests.get(url, timeout=30, stream=True).content,
    "aiohttp": drivers.get_by_aiohttp,
    "urllib3": drivers.get_by_urllib3,
}


def called(running: Running, call: Callable[[str], Any], url: str) -> dict[str, int]:
    """Return where the time of a call went, which is all of it."""
    started = records.clock()
    call(url)
    ended = records.clock()
    own = partition(read_marks(running.marks).intervals, started, ended)

    assert sum(own.values()) == ended - started
    return own


@pytest.mark.parametrize("client", CALLS)
@pytest.mark.parametrize("dialect", REPORT_CASES)
def test_a_call_is_split_into_server_stages_and_network(
    in_a_request: Running, saying: Callable[[dict[str, str]], str], dialect: str, client: str
) -> None:
    own = called(in_a_request, CALLS[client], saying(REPORT_CASES[dialect].headers))

    assert_split(in_a_request, own, REPORT_CASES[dialect].stages)


@pytest.mark.parametrize("client", CALLS)
@pytest.mark.parametrize("dialect", SAID_IN_BODIES)
def test_a_body_read_by_the_user_gives_server_stages(
    in_a_request: Running, saying: Callable[..., str], dialect: str, client: str
) -> None:
    body, stages = SAID_IN_BODIES[dialect]
    own = called(in_a_request, CALLS[client], saying({}, body))

    assert_split(in_a_request, own, stages)


def assert_split(running: Running, own: dict[str, int], stages: dict[str, float]) -> None:
    """Hold what a call was split into to *stages*, in milliseconds."""
    lengths: dict[str, float] = {}
    for stage, start, end in running.stages():
        name, _, timing = stage.partition("@")
        if timing == "reported":
            lengths[name] = lengths.get(name, 0) + (end - start) / MS

    assert lengths == pytest.approx(stages, abs=2e-6)
    assert own["network"] >= WORK_SECONDS * 1e9 - sum(stages.values()) * MS
    assert all(own[stage] >= length * MS - 2 for stage, length in stages.items())
    assert "@suspect" not in running.marks


def test_server_times_of_headers_are_not_counted_again_from_the_body(
    in_a_request: Running, saying: Callable[..., str]
) -> None:
    url = saying({"openai-processing-ms": "10"}, SAID_IN_BODIES["vllm"][0])
    response = _get(url)
    before = list(in_a_request.marks)
    response.json()

    assert in_a_request.marks == before


@pytest.mark.parametrize("body", [SAID_IN_BODIES["vllm"][0], {"metrics": {"queue_time_ms": -1}}])
def test_a_body_read_twice_counts_once(in_a_request: Running, saying: Callable[..., str], body: dict[str, Any]) -> None:
    response = _get(saying({}, body))
    response.json()
    before = list(in_a_request.marks)
    response.json()

    assert in_a_request.marks == before


@pytest.mark.usefixtures("in_a_request")
def test_a_response_can_be_pickled(saying: Callable[..., str]) -> None:
    response = _get(saying({}, SAID_IN_BODIES["vllm"][0]))

    assert pickle.loads(pickle.dumps(response)).json() == response.json()  # noqa: S301 - ours
    assert b"stagelens" not in pickle.dumps(response)


def test_an_ollama_model_in_memory_is_queue_not_load() -> None:
    ollama = next(dialect for dialect in BODIES if dialect.name == "ollama")
    stages = [module.parse_stages(ollama, {"load_duration": spent * MS}) for spent in (5, 3000)]

    assert stages == [[("queue", 5 * MS)], [("load", 3000 * MS)]]


class Watched(dict[str, Any]):
    """An object of a body that notes what it is asked for."""

    asked: ClassVar[set[str]] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.add(key)
        return super().get(key, default)

    def __getitem__(self, key: str) -> Any:
        self.asked.add(key)
        return super().__getitem__(key)

    def __iter__(self) -> Any:
        raise NotImplementedError

    values = items = keys = __iter__


def test_only_the_fields_of_a_dialect_are_read() -> None:
    body = Watched({"choices": [{"message": {"content": "secret"}}], "response": "secret", "load_duration": 1})
    body["metrics"] = Watched({"queue_time_ms": 1, "prompt": "secret"})
    body["usage"] = Watched({"prompt_time": 0.1})

    assert [dialect.name for dialect, _ in reports_in_body(body)] == ["vllm", "groq", "ollama"]
    names = {field.name for dialect in BODIES for field in dialect.fields}
    assert Watched.asked <= names | {key for dialect in BODIES for place in dialect.places for key in place}


@pytest.mark.parametrize("wrong", IMPOSSIBLE)
def test_impossible_server_times_are_not_used(wrong: str) -> None:
    marks: records.Marks = [records.OPEN, 0, 0]

    assert not record_headers(IMPOSSIBLE[wrong], marks, Wait(0, 20 * MS))
    assert [marks[3], marks[5]] == ["@suspect", 20 * MS]
    assert len(marks) == 6
    assert marks[4] in {dialect.name for dialect in HEADERS}


def test_the_first_valid_of_several_reports_is_used(
    in_a_request: Running, saying: Callable[[dict[str, str]], str]
) -> None:
    called(in_a_request, _get, saying({"openai-processing-ms": "86000", "x-envoy-upstream-service-time": "15"}))

    assert [end - start for stage, start, end in in_a_request.stages() if "@reported" in stage] == [15 * MS]
    assert in_a_request.marks[in_a_request.marks.index("@suspect") + 1] == "openai"


@pytest.mark.parametrize("headers", [{}, {"Server-Timing": "cfEdge;dur=3,db;dur=5, queue"}, {"x-queue-time": "4"}])
def test_unknown_responses_are_ignored(
    in_a_request: Running, saying: Callable[[dict[str, str]], str], headers: dict[str, str]
) -> None:
    own = called(in_a_request, _get, saying(headers))

    assert set(own) <= {"dependency", "overhead"}
    assert "@suspect" not in in_a_request.marks


def test_an_invalid_server_report_is_logged_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_warned", set())
    with caplog.at_level(logging.WARNING, "stagelens"):
        for _ in range(3):
            record_headers({"openai-processing-ms": "9"}, [records.OPEN, 0, 0], Wait(0, MS))

    assert [record.getMessage() for record in caplog.records if "openai-processing-ms" in record.getMessage()] != []
    assert sum(record.name == "stagelens" for record in caplog.records) == 1


def test_failing_headers_are_reported_and_the_response_is_returned(reported: set[str]) -> None:
    class Broken(dict[str, str]):
        def items(self) -> Any:
            raise ZeroDivisionError

    assert not record_headers(Broken({"openai-processing-ms": "9"}), [records.OPEN, 0, 0], Wait(0, MS))
    assert len(reported) == 1
