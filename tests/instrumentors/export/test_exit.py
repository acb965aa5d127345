"""Whole processes: they report at exit without traces of the agent, and never for their parent process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections import Counter

import pytest

from tests.instrumentors.export.conftest import Sink, until

SERVE = """
import os, sys, stagelens
from stagelens.instrumentors import recorder
recorder.flush.__defaults__ = ({flush_seconds},)
def serve(count):
    for _ in range(count):
        with stagelens.request("predict"), stagelens.stage("forward"):
            pass
"""


def settings(url: str, **more: str) -> dict[str, str]:
    ours = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": url,
        "OTEL_EXPORTER_OTLP_TIMEOUT": "60000",
        "STAGELENS_EXPORT_INTERVAL": "30000d",
    }
    return {**os.environ, **ours, **more}


def run(url: str, script: str, flush_seconds: int = 60, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-c", SERVE.format(flush_seconds=flush_seconds) + script]
    env = settings(url, **environment)
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)


def by_instance(sink: Sink) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for post in sink.metrics():
        instance = post.resource()["service.instance.id"]
        counts[instance] += sum(int(point["count"]) for point in post.points("inference.request.duration"))

        assert post.name.startswith(f"{instance}:")

    return dict(counts)


@pytest.mark.parametrize(
    ("ending", "code"),
    [("", 0), ("sys.exit(3)", 3), ("raise SystemExit(3)", 3), ("raise KeyboardInterrupt", -signal.SIGINT)],
)
def test_a_short_script_delivers_all_requests_at_exit(sink: Sink, ending: str, code: int) -> None:
    done = run(sink.url, f"serve(3)\n{ending}", OTEL_SERVICE_NAME="shop", STAGELENS_SERVICE_VERSION="7")

    assert done.returncode == code
    assert done.stderr == "" or code < 0
    assert sink.requests() == 3
    assert sink.metrics()[0].resource().items() >= {"service.name": "shop", "service.version": "7"}.items()
    assert [post.path for post in sink.posts] == ["/v1/metrics", "/v1/traces", "/v1/metrics"]


def test_a_process_ends_cleanly_without_a_collector() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for port in (1, silent.getsockname()[1]):
            done = run(f"http://127.0.0.1:{port}", "serve(3)", flush_seconds=2)

            assert (done.returncode, done.stderr) == (0, "")


FORK_AT_END = """
serve(1)
import signal, threading
from stagelens.instrumentors import exits
def fork():
    while not exits._signals.received:
        pass
    if os.fork() == 0:
        os.write(1, b"left")
        os._exit(0)
threading.Thread(target=fork, daemon=True).start()
os.kill(os.getpid(), signal.SIGTERM)
"""


def test_no_child_begins_after_the_signal_that_ends_its_parent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        done = run(f"http://127.0.0.1:{silent.getsockname()[1]}", FORK_AT_END, flush_seconds=1)

    assert (done.returncode, done.stdout) == (-signal.SIGTERM, "")


def test_a_process_that_recorded_nothing_sends_nothing(sink: Sink) -> None:
    run(sink.url, "")
    done = run(sink.url, "serve(3)", OTEL_SDK_DISABLED="true")

    assert (done.returncode, done.stderr) == (0, "")
    assert sink.posts == []


def test_a_running_process_reports_every_interval(sink: Sink) -> None:
    script = SERVE.format(flush_seconds=60) + "for line in sys.stdin: serve(int(line))"
    env = settings(sink.url, STAGELENS_EXPORT_INTERVAL="100ms")
    with subprocess.Popen([sys.executable, "-c", script], env=env, stdin=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None

        total = 0
        for count in (5, 700, 1):
            print(count, file=process.stdin, flush=True)
            total += count
            until(lambda total=total: sink.requests() == total)
        print(2, file=process.stdin)
        process.stdin.close()
        process.wait(60)

    assert sink.requests() == total + 2
    assert len(sink.metrics()) >= 4


PLANTED = """
import threading, time
from stagelens.instrumentors import recorder
from stagelens.instrumentors.agent import aggregate
def until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
take = aggregate.Aggregator.take
def broken(self):
    aggregate.Aggregator.take = take
    raise {error}("planted")
aggregate.Aggregator.take = broken
serve(2)
until(lambda: aggregate.Aggregator.take is take)
{then}
"""
DIED = """
until(lambda: "stagelens" not in [thread.name for thread in threading.enumerate()])
serve(300)
until(lambda: not recorder.pending)
"""


@pytest.mark.parametrize(
    ("error", "then", "logged", "counts"), [("ValueError", "", 1, [2]), ("SystemExit", DIED, 0, [302])]
)
def test_the_background_thread_survives_an_error_or_is_replaced(
    sink: Sink, error: str, then: str, logged: int, counts: list[int]
) -> None:
    done = run(sink.url, PLANTED.format(error=error, then=then), STAGELENS_EXPORT_INTERVAL="100ms")

    assert done.returncode == 0
    assert done.stderr.count("the background thread had an error and continues") == logged
    assert done.stderr.count("ValueError: planted") == logged
    assert logged or done.stderr == ""
    assert list(by_instance(sink).values()) == counts


def test_invalid_settings_are_named_and_do_not_stop_the_process(sink: Sink) -> None:
    broken = {"STAGELENS_EXPORT_INTERVAL": "soon", "STAGELENS_BUFFER_SIZE": "-1", "STAGELENS_KEEP_SLOW": "many"}
    done = run(sink.url, "serve(3)", 60, **broken)

    assert done.returncode == 0
    assert sink.requests() == 3
    assert sorted(line.split()[1] for line in done.stderr.splitlines()) == sorted(broken)
    assert "STAGELENS_EXPORT_INTERVAL is 'soon'; write a number and a unit" in done.stderr
