"""`stagelens run`: the command is the user's own, and every Python process of it is instrumented."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stagelens.core.errors import ConfigError
from stagelens.instrumentors import run

if TYPE_CHECKING:
    from conftest import Service, Sink

PATCHED = "import starlette.applications as a; print(hasattr(a.Starlette.__call__, '__wrapped__'))"

APP = """
import os
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route
app = Starlette(routes=[Route("/work", lambda request: JSONResponse(os.getpid()))])
"""


def stagelens_run(*words: str, cwd: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-m", "stagelens", "run", *words]
    return subprocess.run(command, cwd=cwd, env={**env, **variables}, capture_output=True, text=True, check=False)


PYTHON = sys.executable
NESTED = ("--", PYTHON, "-m", "stagelens", "run", "--", PYTHON, "-c", "import os; print(os.environ['PYTHONPATH'])")


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        (
            ("--", PYTHON, "-c", f"import sys; {PATCHED}; print(sys.argv[1:])", "--", "-h", "a b"),
            "True\n['--', '-h', 'a b']",
        ),
        ((PYTHON, "-c", PATCHED), "True"),
        (("--", "sh", "-c", f'exec env A=1 "{PYTHON}" -c "{PATCHED}"'), "True"),
        (NESTED, str(run.AUTOLOAD)),
    ],
    ids=["unchanged arguments", "without a separator", "through exec and shells", "nested"],
)
def test_a_command_is_instrumented(words: tuple[str, ...], printed: str) -> None:
    assert stagelens_run(*words).stdout == f"{printed}\n"


@pytest.mark.parametrize(
    ("command", "code"),
    [("exit 0", 0), ("exit 1", 1), ("exit 7", 7), ("exit 255", 255), ("kill -TERM $$", -signal.SIGTERM)],
)
def test_the_end_of_the_command_is_passed_through(command: str, code: int) -> None:
    assert stagelens_run("--", "sh", "-c", command).returncode == code


def test_pythonpath_and_sitecustomize_of_the_user_are_preserved(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import beside\nprint('theirs', __name__, beside.VALUE)\n")
    (tmp_path / "beside.py").write_text("VALUE = 42\n")
    code = f"import sitecustomize; print(sitecustomize.__file__); {PATCHED}"
    completed = stagelens_run("--", sys.executable, "-c", code, PYTHONPATH=str(tmp_path))

    # Once in the process that is `stagelens run`, as in any Python, and once in the command.
    theirs = ["theirs sitecustomize 42"] * 2
    assert completed.stdout.splitlines() == [*theirs, str(tmp_path / "sitecustomize.py"), "True"]


def test_a_failing_sitecustomize_of_the_user_fails_unchanged(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("raise RuntimeError('theirs')\n")
    completed = stagelens_run("--", sys.executable, "-c", PATCHED, PYTHONPATH=str(tmp_path))

    assert completed.stdout == "True\n"
    assert "RuntimeError: theirs" in completed.stderr


def test_an_interpreter_without_stagelens_runs_with_a_hint(tmp_path: Path) -> None:
    venv.create(tmp_path / "other", with_pip=False)
    python = str(tmp_path / "other" / "bin" / "python")
    direct = stagelens_run("--", python, "-c", "print('works')")
    inner = stagelens_run("--", "sh", "-c", f"{python} -c 'print(1)'; true")
    (tmp_path / "serve.py").write_text(f"import subprocess\nsubprocess.run([{python!r}, '-m', 'platform'])\n")
    program = stagelens_run("--", "sh", "-c", f"{python} {tmp_path}/serve.py; true")

    assert direct.stdout == "works\n"
    assert f"{python} -m pip install {run.SOURCE}\n" in direct.stderr
    assert (inner.stdout, inner.stderr) == ("1\n", "")
    # From the program, and not from what it starts.
    assert program.stderr.count("cannot load stagelens") == 1
    assert program.stderr.count("\n") == 1


def test_a_bundle_that_ignores_the_environment_is_named(tmp_path: Path) -> None:
    frozen, with_us = tmp_path / "frozen", tmp_path / "with_us"
    cookie = b"MEI\014\013\012\013\016" + bytes(80)
    frozen.write_bytes(b"#!/bin/true\n" + cookie)
    with_us.write_bytes(b"#!/bin/true\nstagelens.instrumentors" + cookie)
    with zipfile.ZipFile(tmp_path / "app.pex", "w") as archive:
        archive.writestr("PEX-INFO", '{"distributions": {"flask": 1}}')
        archive.writestr("__main__.py", "")
    for path in (frozen, with_us):
        path.chmod(0o755)

    assert "is a program of PyInstaller, which ignores PYTHONPATH" in stagelens_run("--", str(frozen)).stderr
    assert "fix: add stagelens to it" in stagelens_run("--", "sh", "-c", f"exec {frozen} --port 1").stderr
    assert "app.pex is a PEX" in stagelens_run("--", sys.executable, str(tmp_path / "app.pex")).stderr
    assert stagelens_run("--", str(with_us)).stderr == ""
    assert "fix: remove -I" in stagelens_run("--", "sh", "-c", f"{sys.executable} -I -c pass").stderr


def test_a_stagelens_failure_does_not_stop_the_program(tmp_path: Path) -> None:
    (tmp_path / "stagelens").mkdir()
    (tmp_path / "stagelens" / "__init__.py").write_text("raise RuntimeError('ours')\n")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(run.AUTOLOAD), str(tmp_path)])}
    command = [sys.executable, "-c", "print('works')"]
    completed = subprocess.run(command, env=env, capture_output=True, text=True, check=False)

    assert (completed.returncode, completed.stdout) == (0, "works\n")
    assert "RuntimeError('ours')" in completed.stderr
    assert len(completed.stderr.splitlines()) == 1


def test_the_start_imports_no_heavy_modules() -> None:
    code = "import sys; print(*sorted(sys.modules))"
    completed = stagelens_run("--", sys.executable, "-c", code)
    heavy = {"opentelemetry", "http", "json", "gzip", "asyncio", "ssl", "starlette", "torch", "onnxruntime", "numpy"}

    assert heavy.intersection(completed.stdout.split()) == set()


@pytest.mark.parametrize(
    ("words", "code", "fix"),
    [
        ((), 2, "the command is missing"),
        (("--",), 2, "the command is missing"),
        (("--stage",), 2, "the command is missing"),
        (("--workers", "2"), 2, "unknown option --workers"),
        (("--", "uvicornn"), 127, "stagelens run -- python -m uvicornn"),
        (("--", "./nowhere.sh"), 127, "there is no file ./nowhere.sh"),
        (("--", "script.py"), 127, "./script.py, or python script.py"),
        (("--", "./script.py"), 126, "stagelens run -- python ./script.py"),
        (("--", "./plain.sh"), 126, "chmod +x ./plain.sh"),
        (("--stage", "preprocess", "--", "true"), 1, "preprocess=serve:prepare"),
    ],
)
def test_an_invalid_command_is_reported_with_the_fix(
    tmp_path: Path, words: tuple[str, ...], code: int, fix: str
) -> None:
    for name in ("script.py", "plain.sh"):
        (tmp_path / name).write_text("")
    completed = stagelens_run(*words, cwd=tmp_path)

    assert completed.returncode == code
    assert fix in completed.stderr
    assert "Traceback" not in completed.stderr


def test_help_shows_the_usage() -> None:
    completed = stagelens_run("--help")

    assert completed.returncode == 0
    assert "stagelens run -- uvicorn app:app --workers 2" in completed.stdout


def test_stages_named_on_the_command_line_join_those_of_the_environment() -> None:
    env = run.environment({"STAGELENS_STAGES": "tokenize=a:b"}, ["preprocess=c:d", "postprocess=e:F.g"])

    assert env["STAGELENS_STAGES"] == "tokenize=a:b,preprocess=c:d,postprocess=e:F.g"
    with pytest.raises(ConfigError):
        run.environment({}, ["preprocess"])


@pytest.mark.parametrize("stage", [["--stage", "queue=a:b"], ["--stage=queue=a:b"]])
@pytest.mark.parametrize("other", [["--summary"], ["--report", "r.html"], ["--report=r.html"]])
def test_options_end_at_the_command(stage: list[str], other: list[str]) -> None:
    command = ["python", "serve.py", "--stage", "x"]

    assert run.split([*stage, *other, *command])[2] == command
    assert run.split([*other, *stage, *command])[0] == ["queue=a:b"]


@pytest.mark.parametrize(
    ("before", "after"), [(None, []), ("", []), ("/a:/b", ["/a", "/b"]), ("/a::/b:", ["/a", "", "/b", ""])]
)
def test_pythonpath_entries_are_preserved(before: str | None, after: list[str]) -> None:
    env = run.environment({} if before is None else {"PYTHONPATH": before})

    assert env["PYTHONPATH"].split(os.pathsep) == [str(run.AUTOLOAD), *after]


def test_named_functions_are_stages_and_a_missing_one_is_reported(
    sink: Sink, tmp_path: Path, until: Callable[..., None]
) -> None:
    source = "def prepare(): return sum(range(10**6))\n"
    (tmp_path / "work.py").write_text(source)
    script = f"import stagelens, work\n{source}with stagelens.request('job'): prepare(); work.prepare()\n"
    (tmp_path / "serve.py").write_text(script)
    stages = ("preprocess=serve:prepare", "postprocess=work:prepare", "load=elsewhere:fetch")
    words = ["-m", "stagelens", "run", *(f"--stage={stage}" for stage in stages), "--", sys.executable, "serve.py"]
    ended = subprocess.run(
        [sys.executable, *words], cwd=tmp_path, env=sink.environment(), check=True, capture_output=True, text=True
    )
    until(lambda: sink.requests() == 1, "the request")

    assert {"preprocess", "postprocess"} <= sink.stages()
    assert ended.stderr.count("stayed empty") == 1
    assert "--stage load=elsewhere:fetch stayed empty: this process never imported elsewhere" in ended.stderr


@pytest.mark.parametrize(("own", "message"), [(True, "is Python 3.10 and Stagelens needs 3.11."), (False, "")])
def test_an_older_python_gets_the_required_version(own: bool, message: str) -> None:
    older = f"import os, sys; sys.version_info = (3, 10, 0); {'' if own else 'os.getpid = lambda: 0; '}"
    older += f"os.environ['STAGELENS_RUN_PID'] = str({'os.getpid()' if own else '1'}); exec(open({str(run.AUTOLOAD / 'sitecustomize.py')!r}).read(), {{'__file__': {str(run.AUTOLOAD / 'sitecustomize.py')!r}}})"
    ended = subprocess.run([sys.executable, "-c", older], check=True, capture_output=True, text=True)

    assert message in ended.stderr
    assert ended.stderr.count("\n") == (1 if own else 0)
    assert ("fix: run the service with Python 3.11 or newer" in ended.stderr) is own


def test_a_start_that_fails_without_streams_does_not_stop_the_program(tmp_path: Path) -> None:
    broken = tmp_path / "stagelens"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise ValueError('ours')")
    path = os.pathsep.join((str(run.AUTOLOAD), str(tmp_path)))
    command = ("sh", "-c", 'exec "$@" 2>&-', "sh", sys.executable, "-c", "print('served')")
    ended = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})

    assert ended.stdout == "served\n"


def test_each_uvicorn_worker_reports_its_requests(
    tmp_path: Path, sink: Sink, serve: Callable[..., Service], until: Callable[..., None]
) -> None:
    (tmp_path / "work.py").write_text(APP)
    # A worker that does not answer uvicorn for five seconds is killed otherwise, also while it loads.
    service = serve("work:app", "--workers", "2", "--timeout-worker-healthcheck", "120", cwd=tmp_path)
    pids: list[int] = []

    def both_responded() -> bool:
        pids.append(service.send_request("/work"))
        return len(set(pids)) == 2

    until(both_responded, "both workers")
    until(lambda: sink.requests(http_route="/work") == len(pids), "every request")

    assert len(sink.instances()) == 2
    assert service.process.pid not in pids


def test_a_reloaded_service_reports_before_and_after(
    tmp_path: Path, sink: Sink, serve: Callable[..., Service], until: Callable[..., None]
) -> None:
    source = tmp_path / "work.py"
    source.write_text(APP)
    service = serve("work:app", "--reload", cwd=tmp_path)
    before = service.send_request("/work")
    until(lambda: sink.requests(http_route="/work") == 1, "the first child")

    def reloaded() -> bool:
        # A change before the reloader has first looked is none: it is made until it is seen.
        if "Reloading" not in service.log():
            source.write_text(APP.replace("/work", "/changed"))
        return "Started server process" in service.log().partition("Reloading")[2]

    until(reloaded, "the reload")
    after = service.send_request("/changed")
    until(lambda: sink.requests(http_route="/changed") == 1, "the second child")

    assert len({before, after, service.process.pid}) == 3
    assert len(sink.instances()) >= 2


def test_the_last_requests_before_sigterm_are_reported(
    tmp_path: Path, sink: Sink, serve: Callable[..., Service], until: Callable[..., None]
) -> None:
    (tmp_path / "work.py").write_text(APP)
    service = serve("work:app", cwd=tmp_path, STAGELENS_EXPORT_INTERVAL="30000d")
    for _ in range(3):
        service.send_request("/work")
    service.stop()

    until(lambda: sink.requests(http_route="/work") == 3, "the requests of the stopped service")


def test_the_exit_of_a_service_is_unchanged(tmp_path: Path, serve: Callable[..., Service]) -> None:
    (tmp_path / "work.py").write_text(APP)
    service = serve("work:app", cwd=tmp_path)
    service.send_request("/work")
    code = service.stop()
    plain = subprocess.Popen(
        [sys.executable, "-m", "uvicorn", "work:app", "--port", "0"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert plain.stderr is not None
    with plain.stderr:
        next(line for line in plain.stderr if "Uvicorn running" in line)
        plain.terminate()
        plain.stderr.read()

    assert code == plain.wait(60)
