"""A real model server, `transformers serve` with a tiny model, and an instrumented client: equal stages."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import openai
import pytest

from stagelens.core.names import BY_CLIENT_CONTENT
from stagelens.core.partition import partition
from stagelens.instrumentors import recorder, records
from stagelens.instrumentors.libraries.httpx import HttpxInstrumentor
from stagelens.instrumentors.libraries.openai import OpenAIInstrumentor
from stagelens.instrumentors.request_marks import read_marks
from tests.instrumentors.conftest import Service
from tests.instrumentors.libraries.drivers import instrumenting
from tests.instrumentors.libraries.tiny_models import llama, tokenizer

if TYPE_CHECKING:
    from conftest import Finished

pytestmark = pytest.mark.stacks

START_SECONDS = 120
TOKENS = 24


@pytest.fixture(scope="module")
def call_results(tmp_path_factory: pytest.TempPathFactory) -> Generator[dict[str, Any]]:
    """Run a tiny model under `stagelens run`, and return the stages of a call."""
    folder = tmp_path_factory.mktemp("serve")
    llama().save_pretrained(folder / "tiny")
    tokenizer().save_pretrained(folder / "tiny")
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "STAGELENS_"))},
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1",
        "STAGELENS_SERVER_TIMING": "true",
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(folder),
        "OMP_NUM_THREADS": "1",
    }
    command = (str(Path(sys.executable).parent / "transformers"), "serve", "--device", "cpu", "--port", "{port}")
    service = Service(*command, str(folder / "tiny"), env=environment)
    try:
        _wait(service)
        messages = [{"role": "user", "content": "word1 word2 word3"}]
        yield {
            "base_url": f"http://127.0.0.1:{service.port}/v1",
            "call": {"model": str(folder / "tiny"), "messages": messages, "max_tokens": TOKENS},
        }
    finally:
        service.stop()


def _wait(service: Service) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        with contextlib.suppress(ConnectionError), socket.create_connection(("127.0.0.1", service.port)):
            return
        assert service.process.poll() is None, service.log()
        assert time.monotonic() < deadline, service.log()
        time.sleep(0.1)


@pytest.fixture
def client(call_results: dict[str, Any]) -> Generator[openai.OpenAI]:
    with (
        instrumenting(HttpxInstrumentor(), OpenAIInstrumentor()),
        openai.OpenAI(base_url=call_results["base_url"], api_key="k", max_retries=0) as client,
    ):
        yield client


def test_the_stages_of_the_model_are_those_of_the_call(
    in_a_request: Finished, client: openai.OpenAI, call_results: dict[str, Any]
) -> None:
    marks = in_a_request[0][0]
    for first in ("load", "prefill"):
        before, started = len(marks), records.clock()
        client.chat.completions.create(**call_results["call"])
        ended, added = records.clock(), marks[before:]
        own = partition(read_marks(added).intervals, started, ended)
        reported = {key.partition("@")[0] for key in added[::3] if key.endswith("@reported")}

        assert {first, "tokenize", "decode", "postprocess", "serialize"} <= reported <= own.keys()
        assert own["decode"] > 0
        assert own["network"] > 0
        assert sum(own.values()) == ended - started
    assert "@suspect" not in marks


def test_concurrent_calls_have_separate_stages(client: openai.OpenAI, call_results: dict[str, Any]) -> None:
    def call(_: int) -> set[str]:
        opened = recorder.begin()
        assert opened is not None
        marks, token = opened
        client.chat.completions.create(**call_results["call"])
        recorder.end(token)
        return {key.partition("@")[0] for key in marks[::3] if key.endswith("@reported")}

    call(0)
    with ThreadPoolExecutor(2) as pool:
        for stages in pool.map(call, range(2)):
            assert {"queue", "prefill", "decode"} <= stages


def test_a_stream_is_timed_by_its_tokens(
    in_a_request: Finished, client: openai.OpenAI, call_results: dict[str, Any]
) -> None:
    parts = list(client.chat.completions.create(stream=True, **call_results["call"]))
    marks = in_a_request[0][0]
    facts = {key: (first, second) for key, first, second in in_a_request.marks()}
    started, text = marks[1], [part.choices[0].delta.content for part in parts if part.choices]

    assert sum(bool(each) for each in text) < len(parts)
    assert started < facts["@first_token"][0]
    assert facts["@first_token"][1] == BY_CLIENT_CONTENT
    assert facts["@tokens_out"] == (TOKENS, 0)
    assert facts["@per_token"][1] == (TOKENS - 1, BY_CLIENT_CONTENT)
    assert facts["@per_token"][0] < records.clock() - facts["@first_token"][0]
