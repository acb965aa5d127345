"""`stagelens bench` on real commands: two variants that take turns, and nothing left behind."""

from __future__ import annotations

import os
import re
import shlex
import socket
import sys
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from stagelens.core.errors import StagelensError
from stagelens.instrumentors import bench as bench_command
from stagelens.instrumentors import session
from stagelens.instrumentors.bench import rounds
from stagelens.instrumentors.bench.rounds import Both, environments
from stagelens.instrumentors.run import AUTOLOAD
from tests.support import command_line
from tests.support.long_flush_path import LONG_FLUSH
from tests.support.ports import free_port

pytestmark = pytest.mark.stacks

Bench = Callable[..., str]

APP = """
import os
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

async def work(request):
    body = await request.body()
    with open("seen", "a") as file:
        file.write(f"{'autoload' in os.environ.get('PYTHONPATH', '')} {request.method} {request.headers.get('x-key')} {body}\\n")
    return JSONResponse({}, status_code=500 if b"bad" in body else 200)

app = Starlette(routes=[Route("/work", work, methods=["GET", "POST"])])
"""
UVICORN = ("--", sys.executable, "-m", "uvicorn", "serve:app", "--port", "{port}")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(session, "END_SECONDS", 120.0)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), LONG_FLUSH]))
    (tmp_path / "serve.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def bench(place: Path, capsys: pytest.CaptureFixture[str]) -> Generator[Bench]:
    """Runs it in `place` with few and small rounds, and returns what it has printed; no process is left."""

    def measure(*words: str) -> str:
        assert (
            command_line.run(
                "bench", "--rounds", "2", "--requests", "20", "--concurrency", "2", "--warm-up", "1", *words
            )
            == 0
        )
        return capsys.readouterr().out

    yield measure
    assert _left(place) == []


def test_both_variants_run_concurrently_without_a_fixed_port(bench: Bench, place: Path) -> None:
    (place / "body").write_text("good")
    output = bench("--url", "http://127.0.0.1:{port}/work", "--body", "body", "--header", "X-Key: 7", *UVICORN)
    seen = (place / "seen").read_text().splitlines()

    for with_us in (True, False):
        # Two turns, one request to warm up, and the one that found it ready.
        assert seen.count(f"{with_us} POST 7 b'good'") == 42
    assert re.findall(r"^(\w[\w ]*?) {2,}", output, re.MULTILINE)[:2] == ["p50", "throughput"]
    assert "No request was counted" not in output


def test_variants_with_a_fixed_port_run_in_turn(bench: Bench, place: Path) -> None:
    port = str(free_port())
    # Behind a shell, as images start it: that it ends must reach the service, which then sends the last it has.
    started = shlex.join((*UVICORN[1:-1], port))
    output = bench("--rounds", "1", "--url", f"http://127.0.0.1:{port}/work", "--", "sh", "-c", f"{started}; true")
    seen = (place / "seen").read_text().splitlines()

    assert sorted(line.split()[0] for line in seen) == ["False"] * 22 + ["True"] * 22
    assert "No request was counted" not in output


def test_a_custom_load_is_measured_by_its_duration(bench: Bench, place: Path) -> None:
    output = bench("--url", "http://127.0.0.1:{port}/work", "--load", "echo {port} >> loads", *UVICORN)
    ports = (place / "loads").read_text().split()

    assert [ports.count(port) for port in set(ports)] == [3, 3]
    assert re.findall(r"^(\w[\w ]*?) {2,}", output, re.MULTILINE)[0] == "time"


def test_a_command_that_exits_is_its_own_load(bench: Bench, place: Path) -> None:
    code = "open('runs', 'a').write('autoload' in __import__('os').environ.get('PYTHONPATH', '') and 'w' or 'o')"
    output = bench("--", sys.executable, "-c", code)

    assert sorted((place / "runs").read_text()) == ["o", "o", "w", "w"]
    assert "No request was counted" in output
    assert "stagelens doctor -- " in output


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--", sys.executable, "-c", "print('bye', flush=True); 1/0"], "failed with exit code 1\n    bye\n"),
        (["--url", "http://127.0.0.1:{port}/", "--", sys.executable, "-c", "1/0 # {port}"], "failed with exit code 1"),
        (["--", "nosuchcommand"], "nosuchcommand cannot be started"),
        (["--url", "http://127.0.0.1:1/", "--header", "a b\nc: d", "--", "sleep", "60"], "the request cannot be sent"),
        (["--body", "nosuchfile", "--", "true"], "--body nosuchfile cannot be read"),
        (["--url", "http://127.0.0.1:{port}/work", "--body", "bad", *UVICORN], "returns HTTP 500"),
        (["--url", "http://127.0.0.1:{port}/work", "--load", "exit 3", *UVICORN], "--load failed with exit code 3"),
    ],
)
def test_a_failing_command_is_reported_with_its_last_output(place: Path, words: list[str], why: str) -> None:
    (place / "bad").write_text("bad")
    with pytest.raises(StagelensError) as raised:
        command_line.run("bench", "--rounds", "1", *words)

    assert why in str(raised.value)
    assert _left(place) == []


def test_a_port_in_use_by_another_service_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/"
        with pytest.raises(StagelensError, match="another process already listens on"):
            command_line.run("bench", "--url", url, "--", "true")


def test_an_unused_port_is_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    free = rounds._free_port()  # pyright: ignore[reportPrivateUsage] - which one it is, is told to the command alone
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr(rounds, "_PORTS", (taken.getsockname()[1], free))

        assert rounds._free_port() == free  # pyright: ignore[reportPrivateUsage] - as above
    assert free < 32_768


@pytest.mark.parametrize(
    "words",
    [
        ["--url", "nope", "--", "x"],
        ["--url", "http://a:99999/", "--", "x"],
        ["--url", "http://a:{port}/", "--", "x"],
        [],
        ["--rounds", "0", "--", "x"],
        ["--requests", "a", "--", "x"],
        ["--load", "x", "--", "y"],
    ],
)
def test_wrong_usage_exits_with_2(words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command_line.run("bench", *words)

    assert ended.value.code == 2


@pytest.mark.parametrize(("done", "code"), [(0, 130), (1, 0)])
def test_ctrl_c_prints_the_measured_rounds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], done: int, code: int
) -> None:
    def interrupted(_: object) -> Generator[Both]:
        yield from [({"time": 1.0}, {"time": 1.5})] * done
        raise KeyboardInterrupt

    monkeypatch.setattr(bench_command, "measure_rounds", interrupted)

    assert command_line.run("bench", "--", "true") == code
    assert ("+50.0 %" in capsys.readouterr().out) == bool(done)


def test_both_variants_differ_by_stagelens_only() -> None:
    mine = {"PYTHONPATH": f"{AUTOLOAD}{os.pathsep}/app", "OTEL_EXPORTER_OTLP_HEADERS": "a=b", "A": "1"}
    without, with_ = environments(mine, [], "http://127.0.0.1:1")

    assert without == {
        "A": "1",
        "PYTHONPATH": "/app",
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
    }
    assert {name for name, value in with_.items() if without.get(name) != value} == {"PYTHONPATH", "STAGELENS_RUN_PID"}
    assert with_["PYTHONPATH"] == f"{AUTOLOAD}{os.pathsep}/app"


def _left(place: Path) -> list[str]:
    left: list[str] = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if path.joinpath("cwd").readlink() == place and path.name != str(os.getpid()):
                left.append(path.joinpath("cmdline").read_text())
        except OSError:
            continue
    return left
