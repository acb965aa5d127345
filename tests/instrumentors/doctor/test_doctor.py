"""`stagelens doctor` on real commands: inspection of the interpreter, and a test export to a collector."""

from __future__ import annotations

import os
import shlex
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from email.utils import formatdate
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from stagelens.instrumentors.doctor import delivery, live_run
from stagelens.instrumentors.doctor.probe import MARK
from stagelens.instrumentors.run import SOURCE
from stagelens.instrumentors.session import Sink
from tests.support import command_line
from tests.support.certificate_authority import Authorities
from tests.support.hostile_peer import listening
from tests.support.http_server import http_server

Doctor = Callable[..., tuple[int, str]]

APP = """
import onnxruntime
from fastapi import FastAPI
app = FastAPI()
def prepare(): ...
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Path]:
    (tmp_path / "serve.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith(("OTEL_", "STAGELENS_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("OTEL_SERVICE_NAME", "checkout")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "60000")
    monkeypatch.setattr(delivery, "MAX_TIMEOUT_SECONDS", 60.0)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    with Sink() as sink:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", sink.endpoint)
        yield tmp_path
        assert sink.exports == 0


@pytest.fixture
def doctor(place: Path, capsys: pytest.CaptureFixture[str]) -> Doctor:
    def run(*words: str) -> tuple[int, str]:
        assert Path.cwd() == place
        code = command_line.run("doctor", *words)
        captured = capsys.readouterr()
        # But for what is to be copied, and for names that are as long as they are.
        wide = [line for line in captured.out.splitlines() if len(line) > 80 and line[:6].strip()]
        assert [line for line in wide if max(map(len, line.split())) < 60] == []
        return code, " ".join((captured.out + captured.err).split())

    return run


def test_a_healthy_service_gets_a_short_ok_report(doctor: Doctor) -> None:
    code, output = doctor("--stage", "preprocess=serve:prepare", "--", "gunicorn", "--preload", "-w", "2", "serve:app")

    assert code == 0, output
    assert output.endswith("No problems found.")
    assert f"onnxruntime {version('onnxruntime')}" in output
    assert f"starlette {version('starlette')}, fastapi {version('fastapi')}" in output
    assert f"gunicorn {version('gunicorn')}" in output


def test_another_interpreter_is_inspected(doctor: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    other = tmp_path / "bare" / "bin" / "python"
    code, output = doctor("--", str(other), "serve.py")

    assert code == 1
    assert "onnxruntime" not in output
    assert (
        f"cannot load stagelens (ModuleNotFoundError: No module named 'stagelens'): nothing is timed. {other} -m pip install {SOURCE}"
        in output
    )


def test_an_ignored_or_replaced_pythonpath_is_reported_with_the_fix(doctor: Doctor) -> None:
    code, output = doctor("--", sys.executable, "-I", "-m", "uvicorn", "serve:app")

    assert code == 1
    assert "-I makes Python ignore PYTHONPATH, which loads Stagelens: nothing is timed." in output

    code, output = doctor("--", "env", "PYTHONPATH=.", sys.executable, "serve.py")

    assert code == 1
    assert "PYTHONPATH, which loads Stagelens, is overwritten: nothing is timed." in output
    fix = f"env PYTHONPATH=. stagelens run -- {shlex.quote(sys.executable)} serve.py"
    assert fix in output
    # Where we are installed, that is.
    env = ["env", f"PYTHONPATH={os.environ.get('PYTHONPATH', '.')}"]
    assert doctor("--", *env, "stagelens", "run", "--", sys.executable, "serve.py")[0] == 0


def test_the_opentelemetry_launcher_loads_stagelens_unless_disabled(
    doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("--stage", "preprocess=serve:prepare", "--", "opentelemetry-instrument", "uvicorn", "serve:app")

    assert doctor(*words)[0] == 0
    monkeypatch.setenv("OTEL_PYTHON_DISABLED_INSTRUMENTATIONS", "*")
    code, output = doctor(*words)
    assert code == 1
    assert "runs instead of that of Stagelens: nothing is timed" in output


@pytest.mark.parametrize(
    "words",
    [[], ["--"], ["--nosuch", "--", "x"], ["--run", "--", "x"], ["--run=soon", "--", "x"], ["--stage", "a", "--", "x"]],
)
def test_wrong_usage_exits_with_2_and_shows_the_usage(doctor: Doctor, words: list[str]) -> None:
    code, output = doctor(*words)

    assert code == 2
    assert "usage: stagelens doctor" in output


def test_startup_output_and_startup_failures_are_distinguished(doctor: Doctor, place: Path) -> None:
    (place / "sitecustomize.py").write_text(f"print('hello'); print('{MARK}' * 0)")
    start = ["env", f"PYTHONPATH={place}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"]
    started = [*start, "stagelens", "run", "--", sys.executable, "serve.py"]

    assert doctor("--", *started)[0] == 0
    (place / "sitecustomize.py").write_text("raise SystemExit('no license')")
    code, output = doctor("--", *started)
    assert code == 1
    assert "cannot be queried: SystemExit: no license" in output


@contextmanager
def responding(status: int, headers: dict[str, str] | None = None) -> Generator[str]:
    with http_server(lambda _: (status, headers or {}, b"because")) as collector:
        yield collector.url


@pytest.mark.parametrize(
    ("server", "text", "fix"),
    [
        (
            lambda: responding(401),
            "requires a token (HTTP 401 because)",
            "OTEL_EXPORTER_OTLP_HEADERS=authorization=Bearer%20<token>",
        ),
        (
            lambda: responding(404),
            "is not an OTLP receiver: POST /v1/metrics returned HTTP 404 because",
            "OTEL_EXPORTER_OTLP_ENDPOINT=",
        ),
        (lambda: responding(503), "does not accept data at present: POST /v1/metrics returned HTTP 503 because", ""),
        (lambda: responding(200, {"Date": formatdate(time.time() - 7200)}), "7,2", "timedatectl"),
        (lambda: listening("speaks HTTP/2"), "it may be the OTLP/gRPC port", ":4318"),
    ],
    ids=["token", "path", "busy", "clock", "grpc"],
)
def test_a_refusing_collector_is_reported_with_its_response(
    doctor: Doctor, monkeypatch: pytest.MonkeyPatch, server: Callable[[], Any], text: str, fix: str
) -> None:
    with server() as url:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        _, output = doctor("--", "true")

    assert text in output
    assert fix in output


def test_a_missing_collector_is_reported_without_summary(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{closed.getsockname()[1]}")

        assert "(Connection refused): data is buffered, up to 16 MiB" in doctor("--", "true")[1]
        assert "refused" not in doctor("--summary", "--", "true")[1]


def test_an_unknown_certificate_authority_is_reported_with_the_setting(
    doctor: Doctor, monkeypatch: pytest.MonkeyPatch, authority: Authorities
) -> None:
    own = authority("servers").sign("collector")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own.certificate, own.key)
    with http_server(context=context) as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url.replace("localhost", "127.0.0.1"))

        assert "OTEL_EXPORTER_OTLP_CERTIFICATE=/path/of" in doctor("--", "true")[1]
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", str(authority("servers").file))
        assert "TLS verification failed" not in doctor("--", "true")[1]
    with http_server() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url.replace("http:", "https:"))
        assert (
            f"OTEL_EXPORTER_OTLP_ENDPOINT={collector.url} # the collector does not use TLS" in doctor("--", "true")[1]
        )


# What no other test runs at the same time.
MISSED = f"import time; time.sleep(60.{os.getpid()})"
PARENT = f"""
import subprocess, sys, time
import starlette.applications
print("ready", flush=True)
subprocess.run([sys.executable, "-c", {MISSED!r}], env={{"PYTHONPATH": "/"}})
"""


class Clock:
    def __init__(self) -> None:
        self._looks = 0

    def monotonic(self) -> float:
        if self._looks or _running(MISSED):
            self._looks += 1
        return self._looks / 20


def test_a_run_reports_imports_and_uninstrumented_processes_and_cleans_up(
    doctor: Doctor, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "parent.py").write_text(PARENT)
    monkeypatch.setattr(live_run, "BEGIN_SECONDS", 0.3)
    monkeypatch.setattr(live_run, "time", Clock())
    code, output = doctor("--run", "2", "--", sys.executable, "parent.py")

    assert code == 1
    assert "in instrumented Python processes: 1" in output
    assert "Starlette and FastAPI (1)" in output
    assert "JSON (1)" in output
    assert f"{MISSED}` ran without Stagelens" in output
    assert _running(MISSED) == []


def test_a_run_that_exits_is_reported(doctor: Doctor, place: Path) -> None:
    (place / "broken.py").write_text("import nosuchmodule")
    code, output = doctor("--run", "60", "--", sys.executable, "broken.py")

    assert code == 1
    assert "the command failed with exit code 1: ModuleNotFoundError: No module named 'nosuchmodule'" in output


def _running(code: str) -> list[str]:
    lines: list[str] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(path.read_text(errors="replace").replace("\0", " "))
        except OSError:
            continue
    return [line for line in lines if code in line]
