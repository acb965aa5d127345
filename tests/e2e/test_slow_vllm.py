"""Two vLLM servers behind the router of the vLLM project, one of them slowed: named within three minutes of its requests."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from stagelens.alerts.evaluation.evidence import outlier_sentence
from stagelens.collector.config import LiveConfig
from stagelens.collector.serve import Collector, CollectorConfig
from stagelens.store import Store
from tests.support.ports import free_port
from tests.support.serving import serving
from tests.support.slow_replicas import ask_until_named, wait_until_up

pytestmark = pytest.mark.soak
_ROOT = Path(__file__).parents[2]
_VLLM, _ROUTER = _ROOT / ".venv" / "vllm", _ROOT / ".venv" / "router"
_TARGETS = """scrape:
  targets:
  - {{url: "http://127.0.0.1:{}/metrics", service: chat-metrics}}
  - {{url: "http://127.0.0.1:{}/metrics", service: chat-metrics}}
"""
_SENTENCE = "{} is [0-9.]+. slower than the other replica since 14:02( or earlier)?: Decode .*"
# Number of layers of each replica's model: the second replica takes three to four times as long on any machine.
_LAYERS = {"chat-fast": 2, "chat-slow": 24}
# Of both replicas together [requests/s], and the seconds that a server has to start on a busy machine.
_RATE, _START_SECONDS = 4.0, 240.0


@contextmanager
def running(command: list[str | Path], folder: Path, **env: str) -> Generator[None]:
    output = (folder / "output").open("w")
    with (
        output,
        subprocess.Popen(
            command, cwd=folder, env=os.environ | env, stdout=output, stderr=output, start_new_session=True
        ) as process,
    ):
        try:
            yield
        finally:
            os.killpg(process.pid, signal.SIGKILL)


@contextmanager
def vllm(folder: Path, instance: str, port: int, collector: str) -> Generator[None]:
    folder.mkdir()
    command: list[str | Path] = [sys.executable, _ROOT / "tests" / "docs" / "shims" / "vllm", "serve", "tiny"]
    command += ["--port", str(port), "--otlp-traces-endpoint", f"{collector}/v1/traces"]
    command += ["--load-format", "dummy", "--hf-overrides", f'{{"num_hidden_layers": {_LAYERS[instance]}}}']
    settings = {
        "PYTHONPATH": str(_VLLM),
        "OTEL_SERVICE_NAME": "chat",
        "OTEL_RESOURCE_ATTRIBUTES": f"service.instance.id={instance}",
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
    }
    with running(command, folder, **settings):
        yield


@contextmanager
def router(folder: Path, port: int, servers: list[str]) -> Generator[str]:
    folder.mkdir()
    command: list[str | Path] = [sys.executable, "-m", "vllm_router.launch_router", "--policy", "round_robin"]
    command += ["--port", str(port), "--prometheus-port", str(free_port()), "--worker-urls", *servers]
    with running(command, folder, PYTHONPATH=str(_ROUTER)):
        yield f"http://127.0.0.1:{port}"


@pytest.mark.timeout(900)
@pytest.mark.skipif(not (_VLLM.is_dir() and _ROUTER.is_dir()), reason="make vllm router: one of them is not installed")
def test_the_slow_one_of_two_vllm_servers_is_named_within_three_minutes(tmp_path: Path) -> None:
    ports, names = [free_port(), free_port()], list(_LAYERS)
    file = tmp_path / "collector.yaml"
    file.write_text(_TARGETS.format(*ports))
    store = Store.open(f"sqlite:///{tmp_path / 'stagelens.db'}")
    with ExitStack() as stack:
        collector = Collector(CollectorConfig(port=0), store, file=LiveConfig(file, {}))
        endpoint = stack.enter_context(serving(collector))
        servers = [f"http://127.0.0.1:{port}" for port in ports]
        for name, port in zip(names, ports, strict=True):
            stack.enter_context(vllm(tmp_path / name, name, port, endpoint))
        for server in servers:
            wait_until_up(f"{server}/health", _START_SECONDS)
        address = stack.enter_context(router(tmp_path / "router", free_port(), servers))
        wait_until_up(f"{address}/health", _START_SECONDS)
        client = stack.enter_context(httpx.Client(base_url=address, timeout=60))
        body = {"model": "tiny", "prompt": "w1 w2 w3", "max_tokens": 8, "ignore_eos": True}
        found = ask_until_named(
            store,
            lambda _: client.post("/v1/completions", json=body).raise_for_status(),
            _RATE,
            ["chat", "chat-metrics"],
        )
    store.close()

    said = {service: outlier_sentence(each, "14:02") for service, each in found.items()}

    assert set(said) == {"chat", "chat-metrics"}
    assert re.fullmatch(_SENTENCE.format("chat-slow"), said["chat"])
    assert re.fullmatch(_SENTENCE.format(f"127.0.0.1:{ports[1]}"), said["chat-metrics"])
    assert all(each.ratio > 1.5 for each in found.values())
