"""Each check reports its problem, and has no finding otherwise."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stagelens import __version__
from stagelens.instrumentors import run
from stagelens.instrumentors.bootstrap import LIBRARIES
from stagelens.instrumentors.doctor import CHECKS, checks, delivery
from stagelens.instrumentors.doctor.inspection import Check, Inspection, Interpreter
from stagelens.instrumentors.doctor.report import WITHOUT_INSTRUMENTOR, timed_libraries, untimed_libraries
from stagelens.instrumentors.doctor.target import find_target


def inspection_of(*words: str, **environment: str) -> Inspection:
    env = run.environment({"OTEL_SERVICE_NAME": "checkout", **environment})
    interpreter = Interpreter(
        executable="/usr/bin/python3",
        version=[3, 12, 1],
        implementation="cpython",
        gil=True,
        ignores_environment=False,
        no_site=False,
        no_user_site=False,
        sitecustomize=str(run.AUTOLOAD / "sitecustomize.py"),
        stagelens={"loaded": True, "error": "", "version": __version__, "file": "/site/stagelens/__init__.py"},
        thread_error="",
        distributions={"opentelemetry-api": "1.45.1", "opentelemetry-sdk": "1.45.1"},
        environment=env,
    )
    # No program of that name need be there.
    target = replace(find_target(words, {"PATH": os.defpath}), problem="")
    return Inspection(target, env, interpreter, saved_here=True)


SERVICE = inspection_of("gunicorn", "--preload", "-w", "4", "serve:app")


def with_interpreter(**facts: Any) -> Inspection:
    assert SERVICE.interpreter is not None
    return replace(SERVICE, interpreter=replace(SERVICE.interpreter, **facts))


NOT_LOADED = {"loaded": False, "error": "", "version": __version__, "file": ""}
PROBLEMS: list[tuple[Inspection, Check, str]] = [
    (replace(SERVICE, target=find_target(["docker", "run", "x"], {})), checks.check_program, "that docker starts"),
    (replace(SERVICE, silence="Permission denied"), checks.check_program, "Permission denied"),
    (with_interpreter(version=[3, 10, 2]), checks.check_versions, "needs 3.11"),
    (
        with_interpreter(distributions={"opentelemetry-api": "1.20.0"}),
        checks.check_versions,
        "'opentelemetry-api>=1.30'",
    ),
    (with_interpreter(implementation="pypy"), checks.check_versions, "pypy"),
    (with_interpreter(stagelens=NOT_LOADED, ignores_environment=True), checks.check_autoload, "ignore PYTHONPATH"),
    (with_interpreter(stagelens=NOT_LOADED, no_site=True), checks.check_autoload, "remove -S"),
    (
        with_interpreter(stagelens=NOT_LOADED, environment={"PYTHONPATH": "/app"}),
        checks.check_autoload,
        "stagelens run -- gunicorn",
    ),
    (
        with_interpreter(stagelens=NOT_LOADED, sitecustomize="/etc/sitecustomize.py"),
        checks.check_autoload,
        "/etc/sitecustomize.py",
    ),
    (
        with_interpreter(stagelens={"loaded": False, "error": "No module"}),
        checks.check_autoload,
        f"-m pip install {run.SOURCE}",
    ),
    (
        with_interpreter(stagelens={**NOT_LOADED, "loaded": True, "version": "0"}),
        checks.check_autoload,
        f"not this version {__version__}",
    ),
    (inspection_of("python", "s.py", STAGELENS_STAGES="load=serve:x"), checks.check_stages, "does not exist in serve"),
    (inspection_of("uwsgi", "--http", ":8000"), checks.check_uwsgi, "--enable-threads"),
    (with_interpreter(thread_error="can't start new thread"), checks.check_threads, "seccomp"),
    (
        inspection_of("python", "s.py", STAGELENS_EXPORT_INTERVAL="3"),
        delivery.check_settings,
        "write a number and a unit",
    ),
    (inspection_of("python", "s.py", OTEL_SDK_DISABLED="true"), delivery.check_settings, "unset OTEL_SDK_DISABLED"),
    (inspection_of("python", "s.py", OTEL_SERVICE_NAME=""), delivery.check_settings, "OTEL_SERVICE_NAME=checkout"),
]


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "serve.py").write_text("import os as system\nb: int\nclass A:\n    def c(self): ...\nd = e = print\n")


@pytest.mark.parametrize(("inspection", "check", "words"), PROBLEMS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_check_finds_its_problem_and_names_the_fix(inspection: Inspection, check: Check, words: str) -> None:
    findings = [f"{finding.text}\n{finding.fix}" for finding in check(inspection)]

    assert [words in finding for finding in findings].count(True) == 1


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_healthy_service_has_no_findings(check: Check) -> None:
    assert list(check(SERVICE)) == []


# Those that depend on an address, a file system, a control group or a device.
ELSEWHERE = {"check_collector", "check_memory", "check_temporary_files", "check_gpus"}


def test_every_check_has_a_test_case() -> None:
    assert {check.__name__ for check in CHECKS} - ELSEWHERE == {check.__name__ for _, check, _ in PROBLEMS}


@pytest.mark.parametrize(
    ("function", "exists"),
    [("A.c", True), ("d", True), ("e", True), ("system.walk", True), ("A.d", False), ("c", False), ("os", False)],
)
def test_a_stage_may_be_defined_assigned_or_imported(function: str, *, exists: bool) -> None:
    inspection = inspection_of("python", "s.py", STAGELENS_STAGES=f"load=serve:{function},load=elsewhere:x")

    assert (list(checks.check_stages(inspection)) == []) is exists


def test_timed_and_untimed_libraries_are_told_apart() -> None:
    inspection = with_interpreter(
        distributions={"tensorflow": "2.21.0", "scikit-learn": "1.9.1", "spacy": "3.8.0", "gevent": "26.9.0"}
    )

    assert [library.title for library in timed_libraries(inspection)] == ["scikit-learn", "TensorFlow"]
    assert untimed_libraries(inspection) == {"spacy": "3.8.0"}
    assert {name for library in LIBRARIES for name in library.load().tested}.isdisjoint(WITHOUT_INSTRUMENTOR)


def test_uwsgi_may_have_its_options_in_a_file() -> None:
    assert list(checks.check_uwsgi(inspection_of("uwsgi", "--ini", "app.ini"))) == []


@pytest.mark.parametrize(("limit", "left"), [("max", None), ("100000", 100000 - 60000 + 20000)])
def test_available_memory_includes_the_page_cache(tmp_path: Path, limit: str, left: int | None) -> None:
    (tmp_path / "memory.max").write_text(f"{limit}\n")
    (tmp_path / "memory.current").write_text("60000\n")
    (tmp_path / "memory.stat").write_text("anon 40000\nfile 20000\n")

    assert checks.memory_left(tmp_path) == left


def test_a_small_container_is_warned_about_the_buffer_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "memory.max").write_text(str(64 * 1024**2))
    (tmp_path / "memory.current").write_text(str(54 * 1024**2))
    (tmp_path / "memory.stat").write_text("file 0\n")
    monkeypatch.setattr(checks, "CGROUP", tmp_path)

    assert [finding.fix for finding in checks.check_memory(SERVICE)] != []
    assert list(checks.check_memory(inspection_of("python", "serve.py", STAGELENS_BUFFER_SIZE="1MiB"))) == []


def test_a_missing_collector_in_a_terminal_is_not_a_problem() -> None:
    findings = list(delivery.check_collector(replace(SERVICE, alone=True)))

    assert [(finding.fix, finding.hurts) for finding in findings] == [("stagelens up", False)]


def test_a_local_run_needs_a_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks.tempfile, "tempdir", str(tmp_path / "nosuch"))

    assert [finding.fix.partition("=")[0] for finding in checks.check_temporary_files(SERVICE)] == ["TMPDIR"]
    assert list(checks.check_temporary_files(replace(SERVICE, saved_here=False))) == []


def test_a_gpu_without_nvml_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "DRIVER", tmp_path / "nvidiactl")
    without = list(checks.check_gpus(SERVICE))
    (tmp_path / "nvidiactl").touch()
    with_nvml = with_interpreter(distributions={"nvidia-ml-py": "13.615.71"})

    findings = [(finding.fix, finding.hurts) for finding in checks.check_gpus(SERVICE)]
    assert findings == [("pip install 'stagelens[gpu]'", False)]
    assert without == list(checks.check_gpus(with_nvml)) == []
