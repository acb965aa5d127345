"""`stagelens run` with a collector of its own: real programs, counted to the last request."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from tests.cli import programs
from tests.cli.programs import LONG_WAIT_RUN, RUN, TIMEOUT_SECONDS, Terminal, environment
from tests.support.ports import free_port

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def go(*words: str | Path, command: Sequence[str] = RUN, **variables: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*command, *map(str, words)],
            cwd=tmp_path,
            env=environment(tmp_path, **variables),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )

        assert list((tmp_path / "tmp").glob("stagelens-*")) == []

        return done

    return go


def requests(saved: Path) -> Counter[str]:
    found: Counter[str] = Counter()
    for entry in json.loads(saved.read_text())["resourceMetrics"]:
        resource = {
            attribute["key"]: attribute["value"]["stringValue"] for attribute in entry["resource"]["attributes"]
        }
        for metric in entry["scopeMetrics"][0]["metrics"]:
            if metric["name"] == "inference.request.duration":
                points = metric["exponentialHistogram"]["dataPoints"]
                found[resource["service.name"]] += sum(int(point["count"]) for point in points)
    return found


@pytest.mark.stacks
def test_a_service_with_a_model_is_summarized_saved_and_shown(run: Run, tmp_path: Path, browser: Browser) -> None:
    port = free_port()
    (tmp_path / "service.py").write_text(programs.SERVICE)
    (tmp_path / "driver.py").write_text(programs.DRIVER)
    server = ("uvicorn", "service:app", "--port", str(port), "--log-level", "critical")
    done = run(
        *("--save", "run.json", "--report=run.html", "--"),
        *(sys.executable, "driver.py", str(port), "25", *server),
        OTEL_SERVICE_NAME="identify",
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert "identify  25 requests" in done.stderr
    assert "Forward" in done.stderr
    assert "POST /identify/{name}" in done.stderr
    assert max(map(len, done.stderr.splitlines())) <= 80
    assert requests(tmp_path / "run.json") == {"identify": 25}
    about: dict[str, Any] = json.loads((tmp_path / "run.json").read_text())["stagelens"]
    assert about["format"] == 1
    assert about["run"]["command"][1:4] == ["driver.py", str(port), "25"]
    assert about["run"]["exitCode"] == 0
    assert about["run"]["start"] < about["run"]["end"]

    context = browser.new_context()
    context.set_offline(True)
    page = context.new_page()
    trouble, asked = list[str](), list[str]()
    page.on("console", lambda message: trouble.append(message.text))
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto((tmp_path / "run.html").as_uri())
    page.wait_for_selector("[data-chart=percentile][data-drawn]")
    text = page.inner_text("main")
    dead = [each for each in ("All traces →", "OTLP JSON", "Capacity & cost", "Any route") if each in text]
    context.close()

    assert trouble == []
    assert asked == [(tmp_path / "run.html").as_uri()]
    assert "25 requests" in text
    assert "Timeline" in text
    assert "395 d" not in text
    assert dead == []


def test_late_workers_and_foreign_spans_are_counted(run: Run, tmp_path: Path) -> None:
    port = free_port()
    for name, text in (("app", programs.FLASK), ("driver", programs.DRIVER), ("foreign", programs.FOREIGN)):
        (tmp_path / f"{name}.py").write_text(text)
    server = f"gunicorn --workers 2 --bind 127.0.0.1:{port} --log-level critical app:app"
    command = f"{sys.executable} foreign.py; exec {sys.executable} driver.py {port} 30 {server}"
    words = ("--save", "run.json", "--", "sh", "-c", command)
    done = run(*words, command=LONG_WAIT_RUN, OTEL_SERVICE_NAME="served")

    assert done.returncode == 0, done.stderr
    # The driver's own calls are no requests: nobody has asked it anything.
    assert requests(tmp_path / "run.json") == {"served": 30, "foreign": 5}


def test_a_run_without_requests_is_explained_and_preserves_the_exit_code(run: Run) -> None:
    done = run("--summary", "--", sys.executable, "-c", "print('out'); raise SystemExit(7)")

    assert (done.returncode, done.stdout) == (7, "out\n")
    assert "No request was recorded in " in done.stderr
    assert "stagelens.request(" in done.stderr


@pytest.mark.parametrize(
    ("words", "code"), [(["--", "sh", "-c", "exit 3"], 3), (["--summary", "--", "no-such-program"], 127)]
)
def test_closed_standard_streams_do_not_fail(tmp_path: Path, words: list[str], code: int) -> None:
    line = f"exec {shlex.join([*RUN, *words])} <&- >&- 2>&-"
    done = subprocess.run(["sh", "-c", line], env=environment(tmp_path), cwd=tmp_path, check=False)

    assert done.returncode == code


def test_a_command_that_cannot_start_prints_only_its_error(run: Run) -> None:
    done = run("--summary", "--", "no-such-program")

    assert done.returncode == 127
    assert "there is no command no-such-program" in done.stderr
    assert "No request" not in done.stderr


@pytest.mark.parametrize("option", ["--save", "--report"])
@pytest.mark.parametrize(("place", "wrong"), [("nowhere/run", "No such file"), (".", "is a folder")])
def test_an_unwritable_output_is_refused_before_the_start(
    run: Run, tmp_path: Path, option: str, place: str, wrong: str
) -> None:
    done = run(option, place, "--", "touch", "started")

    assert done.returncode == 1
    assert option in done.stderr
    assert wrong in done.stderr
    assert not (tmp_path / "started").exists()


def test_a_device_is_not_replaced_and_a_link_is_preserved(run: Run, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "latest.json").symlink_to("today.json")

    refused = run("--save", "pipe", "--", "touch", "started")
    accepted = run("--save", "latest.json", "--", sys.executable, "-c", "")

    assert refused.returncode == 1
    assert "--save pipe is a pipe or a device" in refused.stderr
    assert not (tmp_path / "started").exists()
    assert accepted.returncode == 0
    assert (tmp_path / "latest.json").is_symlink()
    assert json.loads((tmp_path / "today.json").read_text())["stagelens"]["format"] == 1


@pytest.mark.parametrize("words", [["--save"], ["--report="], ["--save", "--", "touch", "started"]])
def test_an_option_without_its_file_is_refused(run: Run, tmp_path: Path, words: list[str]) -> None:
    done = run(*words)

    assert done.returncode == 1
    assert f"{words[0].rstrip('=')} needs a file, such as run." in done.stderr
    assert not (tmp_path / "started").exists()


def test_without_the_server_extra_its_options_are_refused(tmp_path: Path) -> None:
    hidden = "import sys; sys.modules['rich'] = None; from stagelens.__main__ import main; sys.exit(main())"
    asked = [sys.executable, "-c", hidden, "run", "--summary", "--", "touch", "started"]
    refused = subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert refused.returncode == 1
    assert 'pip install "stagelens[server]"' in refused.stderr
    assert "rich is not installed" in refused.stderr
    assert not (tmp_path / "started").exists()


def test_the_command_continues_when_stagelens_is_killed(tmp_path: Path) -> None:
    code = """if True:
        import os, stagelens, sys
        with stagelens.request("job"):
            print(os.getppid(), flush=True)
            sys.stdin.readline()
        print("done", flush=True)
    """
    process = subprocess.Popen(
        [*RUN, "--summary", "--", sys.executable, "-c", code],
        env=environment(tmp_path),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    parent = int(process.stdout.readline())
    process.kill()
    process.wait()
    output, complaint = process.communicate("go on\n")

    assert parent == process.pid
    assert process.returncode == -signal.SIGKILL
    assert output == "done\n"
    assert "Traceback" not in complaint


def test_a_run_in_a_terminal_without_a_collector_is_summarized(tmp_path: Path) -> None:
    with socket.socket() as tried:
        if tried.connect_ex(("127.0.0.1", 4318)) == 0:
            pytest.skip("a collector listens on this machine")
    (tmp_path / "batch.py").write_text(programs.BATCH)
    env = environment(tmp_path, NO_COLOR="", TERM="xterm-256color", COLORTERM="truecolor")
    with Terminal([*RUN, sys.executable, str(tmp_path / "batch.py"), "30"], env, apart=True) as terminal:
        first = terminal.read_until("\n")
        assert terminal.process.stdout is not None
        out = terminal.process.stdout.read()
        code = terminal.end()
        rest = terminal.rest()

        assert (code, out) == (0, "result\n")
        assert "no collector at http://127.0.0.1:4318" in first
        assert re.search(r"batch.*30 requests", rest)
        assert "\x1b[38;2;79;161;253m█" in rest  # Forward, as on a dark page


@pytest.mark.parametrize(
    ("name", "value"), [("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1"), ("OTEL_SDK_DISABLED", "true")]
)
def test_a_run_in_a_terminal_with_a_configured_collector_has_no_summary(tmp_path: Path, name: str, value: str) -> None:
    words = [*RUN, sys.executable, "-c", "import os; print(os.getpid())"]
    with Terminal(words, environment(tmp_path, **{name: value}), apart=True) as terminal:
        assert terminal.process.stdout is not None
        out = terminal.process.stdout.read()

        assert terminal.end() == 0
        assert int(out) == terminal.process.pid
        assert terminal.rest() == ""
