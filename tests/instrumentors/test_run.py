"""`stagelens run`: the command is the user's own, and every Python process of it is instrumented."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from stagelens.core.errors import ConfigError
from stagelens.instrumentors import run
from tests.instrumentors.conftest import Sink, until

PATCHED = "import starlette.applications as a; print(hasattr(a.Starlette.__call__, '__wrapped__'))"


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


@pytest.mark.parametrize(("command", "code"), [("exit 7", 7), ("kill -TERM $$", -signal.SIGTERM)])
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
    # Also if nothing can be reported.
    for redirected, reported in (("", 1), ("2>&-", 0)):
        command = ["sh", "-c", f'exec "$@" {redirected}', "sh", sys.executable, "-c", "print('works')"]
        completed = subprocess.run(command, env=env, check=True, capture_output=True, text=True)

        assert completed.stdout == "works\n"
        assert completed.stderr.count("RuntimeError('ours')") == completed.stderr.count("\n") == reported


def test_the_start_begins_no_thread_and_imports_nothing_heavy() -> None:
    code = "import stagelens, sys, threading; stagelens.request, stagelens.stage\n"
    code += "print(threading.active_count(), *sys.modules)"
    threads, *modules = stagelens_run("--", sys.executable, "-c", code).stdout.split()
    heavy = {"opentelemetry", "http", "json", "gzip", "asyncio", "ssl", "starlette", "torch", "onnxruntime", "numpy"}

    assert (threads, heavy.intersection(modules)) == ("1", set())


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


def test_named_functions_are_stages_and_a_missing_one_is_reported(sink: Sink, tmp_path: Path) -> None:
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
