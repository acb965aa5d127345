"""A real Triton server for tests: the one bundled with nvidia-pytriton, with the models beside this file.

`make triton` installs it. The models run in a Python of their own, since the backend knows numpy below 2 only.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self

from tests.support.http_server import http_server
from tests.support.ports import free_port
from tests.support.real_servers import is_up

HERE = Path(__file__).parent
INSTALLED = HERE.parents[2] / ".venv" / "triton"
BINARIES = INSTALLED / "server" / "pytriton" / "tritonserver"
PYTHON = INSTALLED / "python" / "bin"
START_SECONDS = 120
# The server keeps spans back for 0.1 s.
TRACE_SECONDS = 5


class Ports(NamedTuple):
    http: int
    grpc: int
    metrics: int

    @classmethod
    def free(cls) -> Ports:
        return cls(*(free_port() for _ in cls._fields))


class TritonServer:
    def __init__(self, traces_url: str = "", models: Path = HERE / "models", *, tells_metrics: bool = False) -> None:
        self._tells_metrics = tells_metrics
        self._models = models
        self.ports = Ports.free()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the server
        self._process = subprocess.Popen(
            [BINARIES / "bin" / "tritonserver", *self._options(traces_url)],
            env=environment(),
            stdout=self._log,
            stderr=self._log,
        )

    @property
    def http(self) -> str:
        return f"127.0.0.1:{self.ports.http}"

    @property
    def metrics_url(self) -> str:
        return f"http://127.0.0.1:{self.ports.metrics}/metrics"

    @property
    def grpc(self) -> str:
        return f"127.0.0.1:{self.ports.grpc}"

    def __enter__(self) -> Self:
        deadline = time.monotonic() + START_SECONDS
        while not is_up(f"http://{self.http}/v2/health/ready", 1):
            if self._process.poll() is not None or time.monotonic() > deadline:
                log = self.log()
                self.stop()
                raise AssertionError(log)
            time.sleep(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def log(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    @contextlib.contextmanager
    def hanging(self) -> Generator[None]:
        self._process.send_signal(signal.SIGSTOP)
        # The signal is only on its way: some of its threads may still be at work.
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def _options(self, traces_url: str) -> list[str]:
        options = [
            f"--model-repository={self._models}",
            f"--backend-directory={BINARIES / 'backends'}",
            # It would wait half a minute for connections that a client has left open.
            "--exit-timeout-secs=2",
            "--http-address=127.0.0.1",
            f"--http-port={self.ports.http}",
            "--grpc-address=127.0.0.1",
            f"--grpc-port={self.ports.grpc}",
        ]
        if self._tells_metrics:
            options += ["--metrics-address=127.0.0.1", f"--metrics-port={self.ports.metrics}"]
            options += ["--metrics-config=histogram_latencies=true"]
        else:
            options.append("--allow-metrics=false")
        if traces_url:
            traces = ["mode=opentelemetry", "level=TIMESTAMPS", "rate=1", "count=-1"]
            traces += [f"opentelemetry,url={traces_url}", "opentelemetry,bsp_schedule_delay=100"]
            options += [f"--trace-config={trace}" for trace in traces]
        return options


class TraceSink:
    """Context manager that records the OTLP/JSON of the server unchanged."""

    def __init__(self) -> None:
        self._serving = http_server(lambda _: (200, {"Content-Type": "application/json"}, b"{}"), protocol="HTTP/1.0")

    def __enter__(self) -> Self:
        self._server = self._serving.__enter__()
        self.url = f"{self._server.url}/v1/traces"
        return self

    def __exit__(self, *_: object) -> None:
        self._serving.__exit__(None, None, None)

    def bodies(self) -> list[dict[str, Any]]:
        return [json.loads(request.body) for request in list(self._server.requests)]

    def clear(self) -> None:
        self._server.requests.clear()

    def spans(self) -> Iterator[dict[str, Any]]:
        for body in self.bodies():
            for resource in body["resourceSpans"]:
                for scope in resource["scopeSpans"]:
                    yield from scope["spans"]

    def trace(self, trace_id: str, count: int) -> list[dict[str, Any]]:
        """Return the spans of a trace, as soon as there are *count*; fewer if they do not come.

        Over gRPC the server (24.10) gives some 4 % of calls a trace of their own, whatever `traceparent` says: ask again.
        """
        deadline = time.monotonic() + TRACE_SECONDS
        while True:
            spans = [span for span in self.spans() if span["traceId"] == trace_id]
            if len(spans) >= count or time.monotonic() > deadline:
                return spans
            time.sleep(0.02)


def is_installed() -> bool:
    return (BINARIES / "backends" / "python" / "triton_python_backend_stub").exists()


def environment() -> dict[str, str]:
    # The backend's process must load the very libpython that belongs to its interpreter's standard library.
    ask = "import sysconfig; print(sysconfig.get_config_var('LIBDIR'))"
    libraries = subprocess.run([PYTHON / "python", "-c", ask], capture_output=True, text=True, check=True).stdout
    return {
        "PATH": f"{PYTHON}{os.pathsep}{os.environ.get('PATH', '')}",
        "LD_LIBRARY_PATH": libraries.strip(),
    }
