"""`stagelens up` as an operator meets it: started, stopped, killed and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from stagelens.core.request_histograms import RequestHistograms
from stagelens.store import Selection, Store
from tests.support.otlp_bodies import AGENT_HEADERS, agent_body
from tests.support.process_output import Printing

pytestmark = [pytest.mark.stacks, pytest.mark.flaky(reruns=0)]

STAGELENS = [sys.executable, "-m", "stagelens"]
# Slower than any start seen on a busy machine.
TIMEOUT_SECONDS = 60


class Server(Printing):
    def __init__(self, folder: Path, command: str = "up") -> None:
        ports = ["--collector-port", "0"] if command == "collector" else []
        ports = ["--collector-port", "0", "--dashboard-port", "0"] if command == "up" else ports
        super().__init__([*STAGELENS, command, "--database", f"sqlite:///{folder / 'store.db'}", *ports], cwd=folder)

    def url(self, name: str) -> str:
        return self.wait_for(rf"{name}\s+(http://\S+)", TIMEOUT_SECONDS)[1]

    def terminate(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.wait(TIMEOUT_SECONDS)


@contextmanager
def running(folder: Path) -> Generator[Server]:
    server = Server(folder)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.kill()


def test_a_second_server_over_the_same_file_is_refused_with_a_fix(tmp_path: Path) -> None:
    with running(tmp_path) as first:
        first.url("dashboard")
        words = [*STAGELENS, "up", "--database", f"sqlite:///{tmp_path / 'store.db'}", "--collector-port", "0"]
        second = subprocess.run(
            words, check=False, cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_SECONDS
        )
        first.kill()
    with running(tmp_path) as third:
        assert third.url("dashboard")
        third.terminate()

    assert [path.name for path in tmp_path.iterdir()] == ["store.db"]
    assert second.returncode == 1
    assert "another `stagelens up` uses" in second.stderr
    assert "Stop it, or use another database with --database" in second.stderr
    assert len(second.stderr.splitlines()) == 2


def batch(requests: int) -> bytes:
    counts = RequestHistograms()
    for _ in range(requests):
        counts.add({"forward": 5_000_000}, 5_000_000)
    return agent_body("kill-test", counts)


def post(url: str, body: bytes, name: str) -> int:
    request = urllib.request.Request(f"{url}/v1/metrics", body, AGENT_HEADERS | {"X-Stagelens-Batch": name})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response:
            return response.status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def counted(folder: Path) -> int:
    store = Store.open(f"sqlite:///{folder / 'store.db'}")
    try:
        now = datetime.now(UTC)
        window = Selection(now - timedelta(hours=1), now + timedelta(minutes=1), service="kill-test")
        return store.read.latency(window).count
    finally:
        store.close()


def test_metrics_include_alerts_and_sigterm_drains(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        url = server.url("OTLP/HTTP")
        with urllib.request.urlopen(f"{url}/metrics") as response:
            text = response.read().decode()
        status = post(url, batch(7), "a:1")
        code = server.terminate()

    assert "stagelens_collector_healthy 1.0" in text
    assert 'stagelens_alerts_open_incidents{severity="page"} 0.0' in text
    assert (status, code) == (200, 0)
    assert counted(tmp_path) == 7


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.parametrize("is_back", [False, True])
def test_nothing_is_acknowledged_without_the_file_of_a_restart(tmp_path: Path, *, is_back: bool) -> None:
    away = tmp_path / "away"
    away.mkdir()
    with running(tmp_path) as server:
        url, dashboard = server.url("OTLP/HTTP"), server.url("dashboard")
        first = post(url, batch(1), "a:0")
        for path in tmp_path.glob("store.db*"):
            path.rename(away / path.name)
        refused = [post(url, batch(2), f"a:{number}") for number in range(1, 7)]
        probes = [get(f"{address}/readyz") for address in (url, dashboard)]
        names = [path.name for path in tmp_path.glob("store.db*")]
        for path in away.iterdir() if is_back else ():
            path.rename(tmp_path / path.name)
        again = [post(url, batch(2), f"a:{number}") for number in range(7)]
        server.terminate()
    lines = [line for line in server.lines if "removed or replaced" in line and " commit" in line]
    if not is_back:
        with running(tmp_path) as server:
            again = [post(server.url("OTLP/HTTP"), batch(2), f"a:{number}") for number in range(7)]
            server.terminate()

    assert (first, refused, names) == (200, [503] * 6, [])
    assert [status for status, _ in probes] == [503, 503]
    assert all("removed or replaced while it was open" in text for _, text in probes)
    assert len(lines) == 1
    assert again == [200] * 7
    assert counted(tmp_path) == (1 if is_back else 2) + 12


# `stagelens` whose SIGTERM comes to another thread while the main one waits, as it may after SIGSTOP and SIGCONT.
ASTRAY = """
import signal, sys, threading, time
from stagelens.__main__ import main

def waits():
    frame = sys._current_frames()[threading.main_thread().ident]
    names = []
    while frame:
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    return names[:3] == ["wait", "wait", "_serve"]

def stray():
    while not waits():
        time.sleep(0.01)
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

threading.Thread(target=stray, daemon=True).start()
sys.exit(main())
"""


def test_sigterm_ends_the_server_in_any_thread(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", ASTRAY, "alerts", "--database", f"sqlite:///{tmp_path / 'store.db'}"],
        cwd=tmp_path,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )

    assert ended.returncode == 0


def test_collector_dashboard_and_alerts_run_separately_over_one_file(tmp_path: Path) -> None:
    collector = Server(tmp_path, "collector")
    status = post(collector.url("OTLP/HTTP"), batch(3), "b:1")
    others = [
        subprocess.Popen(
            [*STAGELENS, command, "--database", f"sqlite:///{tmp_path / 'store.db'}"],
            cwd=tmp_path,
            env=os.environ | {"STAGELENS_DASHBOARD_PORT": "0"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for command in ("alerts", "dashboard")
    ]
    for process in others:
        assert process.stdout is not None
        assert any("database" in line for line in process.stdout)
    codes = [collector.terminate()]
    for process in others:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=TIMEOUT_SECONDS)
        codes.append(process.returncode)

    assert status == 200
    assert codes == [0, 0, 0]
