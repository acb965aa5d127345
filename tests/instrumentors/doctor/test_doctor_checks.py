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
from stagelens.instrumentors.doctor import CHECKS, checks
from stagelens.instrumentors.doctor.checks import (
    check_autoload,
    check_program,
    check_stages,
    check_threads,
    check_uwsgi,
    check_versions,
)
from stagelens.instrumentors.doctor.delivery import check_collector, check_settings, profiler_state
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


def having(**facts: Any) -> Inspection:
    assert SERVICE.interpreter is not None
    return replace(SERVICE, interpreter=replace(SERVICE.interpreter, **facts))


def set_to(**environment: str) -> Inspection:
    return inspection_of("python", "s.py", **environment)


NOT_LOADED = {"loaded": False, "error": "", "version": __version__, "file": ""}
PROBLEMS: list[tuple[Inspection, Check, str]] = [
    (replace(SERVICE, target=find_target(["docker", "run", "x"], {})), check_program, "that docker starts"),
    (replace(SERVICE, silence="Permission denied"), check_program, "Permission denied"),
    (having(version=[3, 10, 2]), check_versions, "needs 3.11"),
    (having(distributions={"opentelemetry-api": "1.20.0"}), check_versions, "'opentelemetry-api>=1.30'"),
    (having(implementation="pypy"), check_versions, "pypy"),
    (having(stagelens=NOT_LOADED, ignores_environment=True), check_autoload, "ignore PYTHONPATH"),
    (having(stagelens=NOT_LOADED, no_site=True), check_autoload, "remove -S"),
    (having(stagelens=NOT_LOADED, environment={"PYTHONPATH": "/app"}), check_autoload, "stagelens run -- gunicorn"),
    (having(stagelens=NOT_LOADED, sitecustomize="/etc/s.py"), check_autoload, "/etc/s.py"),
    (having(stagelens={"loaded": False, "error": "No module"}), check_autoload, f"-m pip install {run.SOURCE}"),
    (having(stagelens={**NOT_LOADED, "loaded": True, "version": "0"}), check_autoload, f"this version {__version__}"),
    (set_to(STAGELENS_STAGES="load=serve:x"), check_stages, "does not exist in serve"),
    (inspection_of("uwsgi", "--http", ":8000"), check_uwsgi, "--enable-threads"),
    (having(thread_error="can't start new thread"), check_threads, "seccomp"),
    (set_to(STAGELENS_EXPORT_INTERVAL="3"), check_settings, "write a number and a unit"),
    (set_to(OTEL_SDK_DISABLED="true"), check_settings, "unset OTEL_SDK_DISABLED"),
    (set_to(OTEL_SERVICE_NAME=""), check_settings, "OTEL_SERVICE_NAME=checkout"),
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
    inspection = set_to(STAGELENS_STAGES=f"load=serve:{function},load=elsewhere:x")

    assert (list(check_stages(inspection)) == []) is exists


def test_timed_and_untimed_libraries_are_told_apart() -> None:
    inspection = having(
        distributions={"tensorflow": "2.21.0", "scikit-learn": "1.9.1", "spacy": "3.8.0", "gevent": "26.9.0"}
    )

    assert [library.title for library in timed_libraries(inspection)] == ["scikit-learn", "TensorFlow"]
    assert untimed_libraries(inspection) == {"spacy": "3.8.0"}
    assert {name for library in LIBRARIES for name in library.load().tested}.isdisjoint(WITHOUT_INSTRUMENTOR)


def test_uwsgi_may_have_its_options_in_a_file() -> None:
    assert list(check_uwsgi(inspection_of("uwsgi", "--ini", "app.ini"))) == []


@pytest.mark.parametrize(
    ("settings", "state"),
    [
        (
            {},
            "on, at most 1 % of a CPU core, 2 % while requests wait for locks, within the overhead budget of 1 % of the",
        ),
        ({"STAGELENS_OVERHEAD_BUDGET": "none"}, "on, at most 1 % of a CPU core, 2 % while requests wait for locks"),
        ({"STAGELENS_PROFILE": "off"}, "off (STAGELENS_PROFILE)"),
        ({"OTEL_SDK_DISABLED": "true"}, ""),
    ],
)
def test_the_state_of_the_tail_profiler_is_reported(settings: dict[str, str], state: str) -> None:
    assert profiler_state(set_to(**settings)).partition(" request time")[0] == state


MIB = 1024**2


@pytest.mark.parametrize(("limit", "left"), [("max", None), (64 * MIB, 64 * MIB - 54 * MIB + 2 * MIB)])
def test_a_small_container_is_warned_about_the_buffer_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: object, left: int | None
) -> None:
    texts = {"max": f"{limit}\n", "current": f"{54 * MIB}\n", "stat": f"anon 40000\nfile {2 * MIB}\n"}
    for name, text in texts.items():
        (tmp_path / f"memory.{name}").write_text(text)
    monkeypatch.setattr(checks, "CGROUP", tmp_path)

    assert checks.memory_left(tmp_path) == left
    assert len(list(checks.check_memory(SERVICE))) == (left is not None)
    assert list(checks.check_memory(set_to(STAGELENS_BUFFER_SIZE="1MiB"))) == []


def test_a_missing_collector_in_a_terminal_is_not_a_problem() -> None:
    findings = list(check_collector(replace(SERVICE, alone=True)))

    assert [(finding.fix, finding.hurts) for finding in findings] == [("stagelens up", False)]


def test_a_local_run_needs_a_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks.tempfile, "tempdir", str(tmp_path / "nosuch"))

    assert [finding.fix.partition("=")[0] for finding in checks.check_temporary_files(SERVICE)] == ["TMPDIR"]
    assert list(checks.check_temporary_files(replace(SERVICE, saved_here=False))) == []


def test_a_gpu_without_nvml_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "DRIVER", tmp_path / "nvidiactl")
    without = list(checks.check_gpus(SERVICE))
    (tmp_path / "nvidiactl").touch()
    with_nvml = having(distributions={"nvidia-ml-py": "13.615.71"})

    findings = [(finding.fix, finding.hurts) for finding in checks.check_gpus(SERVICE)]
    assert findings == [("pip install 'stagelens[gpu]'", False)]
    assert without == list(checks.check_gpus(with_nvml)) == []
