"""The demo: a real model service with Stagelens on it, a load, a bad release and the alert it causes.

Starts `stagelens up`, the service under `stagelens run`, and a load; restarts the service as version 2 after 45 s.
Ctrl-C stops everything.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

HERE = Path(__file__).parent
STAGELENS = [sys.executable, "-m", "stagelens"]
STARTED = time.monotonic()
# Signals that came. A handler must not take the lock of an event for which this thread may wait.
SIGNALS: list[int] = []


class Stopped(Exception):  # noqa: N818 - no error
    """Raised where the demo waits, after Ctrl-C."""


def pause(seconds: float) -> None:
    until = time.monotonic() + seconds
    while not SIGNALS and (left := until - time.monotonic()) > 0:
        time.sleep(min(left, 0.1))
    if SIGNALS:
        raise Stopped


def say(text: str) -> None:
    minutes, seconds = divmod(int(time.monotonic() - STARTED), 60)
    print(f"  {minutes}:{seconds:02d}  {text}", flush=True)


def free_port(preferred: int) -> int:
    for port in (preferred, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return probe.getsockname()[1]
    raise AssertionError  # port 0 always binds


@contextmanager
def process(command: list[str], log: Path, **environment: str) -> Generator[subprocess.Popen[bytes]]:
    """Run *command* until the block ends, its output in *log*, its temporary files beside; it gets 10 s to stop when asked."""
    with log.open("ab") as output:
        child = subprocess.Popen(
            command,
            cwd=HERE,
            env=os.environ | {"TMPDIR": str(log.parent)} | environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches us alone; we stop the others in order
        )
    try:
        yield child
    finally:
        _stop(child)


def _stop(child: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(child.pid, number)
        except ProcessLookupError:
            break
        try:
            child.wait(timeout=10)
        except subprocess.TimeoutExpired:
            continue
        break
    child.wait()


def wait_for(url: str, child: subprocess.Popen[bytes], log: Path, seconds: float = 90) -> None:
    """Wait until *url* answers.

    Raises:
        SystemExit: *child* ended or the time is up; the end of its log is shown.
        Stopped: Ctrl-C was pressed.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and child.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except OSError:
            pause(0.1)
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
    sys.exit(f"{url} did not answer. The end of its log:\n\n{tail}")


@contextmanager
def alert_inbox(show: Callable[[str], None]) -> Generator[str]:
    class Inbox(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            try:
                message = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
                transition, headline = message["transition"], message["headline"]
            except (LookupError, TypeError, ValueError):
                self.send_error(400, "not an alert")
                return
            self.send_response(200)
            self.end_headers()
            show(f"{transition}: {headline}")
            if transition == "opened":
                say("the first card of the page says what is wrong; click it to see since when, and in which requests")

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is http.server's
            ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Inbox)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()
        server.server_close()


def write_slo_file(folder: Path, webhook_url: str, dashboard_url: str) -> Path:
    path = folder / "slo.yaml"
    channel = f"\nchannels:\n  - kind: webhook\n    url: {webhook_url}\n\ndashboard_url: {dashboard_url}\n"
    path.write_text((HERE / "slo.yaml").read_text() + channel)
    return path


def service_command(port: int) -> list[str]:
    own = [sys.executable, "-m", "uvicorn", "serve:app", "--port", str(port), "--log-level", "warning"]
    stages = ["--stage", "preprocess=serve:prepare", "--stage", "postprocess=serve:describe"]
    return [*STAGELENS, "run", *stages, "--", *own]


def wait_for_first_requests(collector_url: str, seconds: float = 60) -> None:
    """Wait until the collector has kept the first requests, so that there is a page to see."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with suppress(OSError), urllib.request.urlopen(f"{collector_url}/metrics", timeout=2) as response:
            if b"stagelens_collector_points_total{" in response.read():
                return
        pause(0.1)


def counted_requests(dashboard_url: str) -> int:
    """Return how many requests of the last hour the dashboard counts; 0 while it does not answer."""
    url = f"{dashboard_url}/api/v1/query/latency?service=magika&from=now-1h"
    with suppress(OSError), urllib.request.urlopen(url, timeout=5) as response:
        return int(json.load(response)["requests"])
    return 0


def demo(options: argparse.Namespace) -> None:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stagelens-demo-")))
        collector_port, dashboard_port = free_port(options.collector_port), free_port(options.port)
        service_port = free_port(options.service_port)
        collector_url, dashboard_url = f"http://127.0.0.1:{collector_port}", f"http://127.0.0.1:{dashboard_port}"
        inbox = stack.enter_context(alert_inbox(lambda text: say(f"ALERT  {text}")))

        say("starting the collector, the dashboard and the alerts")
        up = [*STAGELENS, "up", "--database", f"sqlite:///{folder / 'stagelens.db'}"]
        up += ["--slo", str(write_slo_file(folder, inbox, dashboard_url))]
        up += ["--collector-port", str(collector_port), "--dashboard-port", str(dashboard_port)]
        log = folder / "stagelens.log"
        server = stack.enter_context(process(up, log, STAGELENS_COLLECTOR_GRPC_PORT="0"))
        wait_for(f"{dashboard_url}/", server, log)

        release = stack.enter_context(ExitStack())
        settings = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector_url,
            "OTEL_SERVICE_NAME": "magika",
            "STAGELENS_EXPORT_INTERVAL": options.export_interval,
        }
        start_release(release, folder, service_port, settings, version=1)
        load = [sys.executable, "load.py", f"http://127.0.0.1:{service_port}/identify", "--rate", str(options.rate)]
        stack.enter_context(process(load, folder / "load.log"))
        wait_for_first_requests(collector_url)
        say(f"open {dashboard_url}  (Ctrl-C stops everything)")
        say(
            f"version 1.0.0 is fast; version 2.0.0 follows in {options.healthy_seconds:.0f} s, its alert half a minute later"
        )

        pause(options.healthy_seconds)
        while server.poll() is None and counted_requests(dashboard_url) < options.healthy_requests:
            pause(1)
        say("releasing version 2.0.0: something in it is slow for large files")
        release.close()
        start_release(release, folder, service_port, settings, version=2)
        while server.poll() is None:
            pause(1)
        sys.exit(f"stagelens up ended with code {server.returncode}:\n{log.read_text(errors='replace')[-2000:]}")


def start_release(stack: ExitStack, folder: Path, port: int, settings: dict[str, str], *, version: int) -> None:
    say(f"starting the service, version {version}.0.0")
    log = folder / f"service-{version}.log"
    attributes = f"service.version={version}.0.0,deployment.environment.name=demo"
    environment = settings | {"DEMO_VERSION": str(version), "OTEL_RESOURCE_ATTRIBUTES": attributes}
    child = stack.enter_context(process(service_command(port), log, **environment))
    wait_for(f"http://127.0.0.1:{port}/healthz", child, log)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--port", type=int, default=8600, help="of the dashboard; another if it is taken (default 8600)"
    )
    parser.add_argument("--collector-port", type=int, default=4318, help="of the collector, likewise (default 4318)")
    parser.add_argument("--service-port", type=int, default=8000, help="of the service, likewise (default 8000)")
    parser.add_argument("--rate", type=float, default=15, help="requests a second (default 15)")
    parser.add_argument("--healthy-seconds", type=float, default=45, help="how long version 1 runs (default 45 s)")
    parser.add_argument(
        "--healthy-requests", type=int, default=0, help="and how many requests it has to answer (default 0)"
    )
    parser.add_argument("--export-interval", default="2s", help="how often the service reports (default 2s)")
    options = parser.parse_args()
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        # The terminal is closed. With `nohup`, the demo goes on.
        numbers.append(signal.SIGHUP)
    for number in numbers:
        signal.signal(number, lambda received, _: SIGNALS.append(received))
    print("\nStagelens demo: magika, a real ONNX model, behind FastAPI; real files as its load\n", flush=True)
    with suppress(Stopped):
        demo(options)
    say("stopped, nothing left behind")


if __name__ == "__main__":
    main()
