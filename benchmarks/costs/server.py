"""A service in a process of its own: how it is started with each recorder, how it is asked, and the CPU time it takes."""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from processes import free_port

NONE = "none"
AGAIN = "none, again (A/A)"
OURS = "stagelens run"
OPENTELEMETRY = "opentelemetry-instrument, 6 spans"
DDTRACE = "ddtrace-run, 6 spans"
PROMETHEUS = "prometheus-client, 6 observations"
BASE = "stagelens run, of --base"
SERVERS = (NONE, AGAIN, OURS, BASE, OPENTELEMETRY, DDTRACE, PROMETHEUS)
# Folder that holds another version of the package, to compare with.
BASE_VARIABLE = "BENCHMARK_BASE"

BENCHMARKS = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
BODY = b'{"name": "benchmark", "values": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]}'
HEADERS = {"Content-Type": "application/json"}
OUR_STAGES = ("preprocess=costs.app:preprocess", "tokenize=costs.app:tokenize", "postprocess=costs.app:postprocess")
START_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Recorder:
    launcher: tuple[str, ...]
    env: Mapping[str, str]

    @property
    def installed(self) -> bool:
        return not self.launcher or Path(self.launcher[0]).exists()


def recorder(name: str, sink: str) -> Recorder:
    """Return how *name* of `SERVERS` is started, to report to *sink*."""
    # opentelemetry-instrument loads all that is installed: only one shall record.
    otlp = {"OTEL_EXPORTER_OTLP_ENDPOINT": sink, "OTEL_SERVICE_NAME": "benchmark"}
    stages = [argument for stage in OUR_STAGES for argument in ("--stage", stage)]
    ours = (sys.executable, "-m", "stagelens", "run", *stages, "--")
    return {
        OURS: Recorder(ours, otlp),
        BASE: Recorder(ours, {**otlp, "PYTHONPATH": os.environ.get(BASE_VARIABLE, "")}),
        OPENTELEMETRY: Recorder(
            (str(BIN / "opentelemetry-instrument"),),
            {**otlp, "BENCHMARK_STAGES": "opentelemetry", "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "stagelens"},
        ),
        DDTRACE: Recorder(
            (str(BIN / "ddtrace-run"),),
            {"DD_TRACE_AGENT_URL": sink, "DD_SERVICE": "benchmark", "BENCHMARK_STAGES": "ddtrace"},
        ),
        PROMETHEUS: Recorder((), {"BENCHMARK_STAGES": "prometheus"}),
    }.get(name, Recorder((), {}))


class Server:
    def __init__(self, name: str, model: str, sink: str, core: int | None) -> None:
        self.name = name
        how = recorder(name, sink)
        self._port = free_port()
        uvicorn = (
            (sys.executable, "-m", "uvicorn") if how.launcher[:1] == (sys.executable,) else (str(BIN / "uvicorn"),)
        )
        # A server that waits for its next turn shall not hang up.
        options = ("--port", str(self._port), "--app-dir", ".", "--timeout-keep-alive", "3600", "--no-access-log")
        self._process = subprocess.Popen(
            [*pinned(core), *how.launcher, *uvicorn, "costs.app:api", *options, "--log-level", "warning"],
            cwd=BENCHMARKS,
            env={**os.environ, **how.env, "BENCHMARK_MODEL": model},
        )
        self._connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        self._connect()

    def _connect(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self._connection.connect()
            except ConnectionError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
            else:
                return

    def ask(self) -> None:
        self._connection.request("POST", "/predict", BODY, HEADERS)
        response = self._connection.getresponse()
        body = response.read()
        if response.status != http.client.OK:
            msg = f"{self.name} answered {response.status}: {body[:200]!r}"
            raise RuntimeError(msg)

    def cpu_ns(self) -> int:
        """Return the nanoseconds of CPU time of all its threads, of those that have ended too."""
        # Linux: the clock of another process's CPU time, as clock_getcpuclockid(3) names it.
        return time.clock_gettime_ns(~self._process.pid << 3 | 2)

    def stop(self) -> None:
        self._connection.close()
        self._process.kill()
        self._process.wait()


def pinned(core: int | None) -> tuple[str, ...]:
    return () if core is None else ("taskset", "--cpu-list", str(core))
