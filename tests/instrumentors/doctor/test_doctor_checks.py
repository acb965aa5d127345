"""Each check reports its problem, and has no finding otherwise."""

from __future__ import annotations

import ast
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stagelens import __version__
from stagelens.instrumentors import run
from stagelens.instrumentors.bootstrap import LIBRARIES
from stagelens.instrumentors.doctor import (
    CHECKS,
    WITHOUT_MODULE,
    checks,
    frameworks,
    timed_libraries,
    untimed_libraries,
)
from stagelens.instrumentors.doctor.inspection import Check, Inspection, Interpreter, Sources, read_sources
from stagelens.instrumentors.doctor.target import find_target

Change = Callable[[Inspection], Inspection]


def inspection_of(*words: str, code: str = "", **environment: str) -> Inspection:
    """Return an inspection of a command in a valid environment, whose one module is *code*."""
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
        places={},
        environment=env,
    )
    trees = {Path("serve.py"): ast.parse(code)} if code else {}
    # No program of that name need be there.
    found = replace(find_target(words, {"PATH": os.defpath}), lost="")
    return Inspection(words, found, env, interpreter, sources=Sources(trees), saved_here=True)


def with_interpreter(inspection: Inspection, **facts: Any) -> Inspection:
    """Return *inspection* with an interpreter that reports other facts."""
    assert inspection.interpreter is not None
    return replace(inspection, interpreter=replace(inspection.interpreter, **facts))


HEALTHY = inspection_of("gunicorn", "--preload", "-w", "4", "-k", "gevent", "serve:app", code="import torch")
NOT_LOADED = {"loaded": False, "error": "", "version": __version__, "file": ""}
LATE_PATCH = "import requests\nfrom gevent import monkey\nmonkey.patch_all()"
STREAM = "client.chat.completions.create(model='m', messages=[], stream=True)"
COUNTERS = "import prometheus_client"

# What is in the way, the check that must see it, and words of what it says or of its fix.
TROUBLES: list[tuple[Inspection, Check, str]] = [
    (
        inspection_of("python", "serve.py", code="import asyncio\nasyncio.start_server(respond, port=80)"),
        frameworks.check_unseen_servers,
        "asyncio.start_server (serve.py:2) serves requests that Stagelens does not see",
    ),
    (inspection_of("robyn", code="import robyn"), frameworks.check_unseen_servers, "robyn serves requests"),
    (
        replace(HEALTHY, target=find_target(["docker", "run", "x"], {})),
        checks.check_program,
        "inside the command that docker starts",
    ),
    (replace(HEALTHY, silence="Permission denied"), checks.check_program, "Permission denied"),
    (with_interpreter(HEALTHY, version=[3, 10, 2]), checks.check_versions, "needs 3.11"),
    (
        with_interpreter(HEALTHY, distributions={"opentelemetry-api": "1.20.0"}),
        checks.check_versions,
        "'opentelemetry-api>=1.30'",
    ),
    (with_interpreter(HEALTHY, implementation="pypy"), checks.check_versions, "pypy"),
    (
        with_interpreter(HEALTHY, stagelens=NOT_LOADED, ignores_environment=True),
        checks.check_autoload,
        "ignore PYTHONPATH",
    ),
    (with_interpreter(HEALTHY, stagelens=NOT_LOADED, no_site=True), checks.check_autoload, "remove -S"),
    (
        with_interpreter(HEALTHY, stagelens=NOT_LOADED, environment={"PYTHONPATH": "/app"}),
        checks.check_autoload,
        "stagelens run -- gunicorn",
    ),
    (
        with_interpreter(HEALTHY, stagelens=NOT_LOADED, sitecustomize="/etc/sitecustomize.py"),
        checks.check_autoload,
        "/etc/sitecustomize.py",
    ),
    (
        with_interpreter(HEALTHY, stagelens={"loaded": False, "error": "No module"}),
        checks.check_autoload,
        f"-m pip install {run.SOURCE}",
    ),
    (
        with_interpreter(HEALTHY, stagelens={**NOT_LOADED, "loaded": True, "version": "0"}),
        checks.check_autoload,
        f"not this version {__version__}",
    ),
    (
        inspection_of("python", "serve.py", code="def a(): ...", STAGELENS_STAGES="load=serve:b"),
        checks.check_stages,
        "does not exist in serve",
    ),
    (inspection_of("uwsgi", "--http", ":8000"), checks.check_uwsgi, "--enable-threads"),
    (
        inspection_of("python", "serve.py", code=LATE_PATCH),
        frameworks.check_gevent,
        "serve.py:3 patches after requests",
    ),
    (inspection_of("gunicorn", "-keventlet", "serve:app"), frameworks.check_gevent, "eventlet"),
    (inspection_of("ddtrace-run", "python", "serve.py"), frameworks.check_tracers, "DD_TRACE_ENABLED=false"),
    (
        inspection_of("python", "serve.py", code="import sentry_sdk\nsentry_sdk.init()"),
        frameworks.check_tracers,
        "Sentry",
    ),
    (with_interpreter(HEALTHY, thread_error="can't start new thread"), checks.check_threads, "seccomp"),
    (
        inspection_of("python", "serve.py", STAGELENS_EXPORT_INTERVAL="3"),
        checks.check_settings,
        "write a number and a unit",
    ),
    (inspection_of("python", "serve.py", OTEL_SDK_DISABLED="true"), checks.check_settings, "unset OTEL_SDK_DISABLED"),
    (inspection_of("python", "serve.py", OTEL_SERVICE_NAME=""), checks.check_settings, "OTEL_SERVICE_NAME=checkout"),
    (
        inspection_of("python", "serve.py", PROMETHEUS_MULTIPROC_DIR="/nosuch"),
        frameworks.check_multiprocess_metrics,
        "mkdir -p /nosuch",
    ),
    (
        inspection_of("gunicorn", "-w4", "serve:app", code=COUNTERS),
        frameworks.check_multiprocess_metrics,
        "Each of 4 workers has separate counters",
    ),
    (inspection_of("vllm", "serve", "m"), frameworks.check_vllm, "--otlp-traces-endpoint"),
    (inspection_of("vllm", "serve", "m"), frameworks.check_vllm, "--enable-per-request-metrics"),
    (
        inspection_of("python", "-m", "vllm.entrypoints.openai.api_server", "--disable-log-stats"),
        frameworks.check_vllm,
        "remove --disable-log-stats",
    ),
    (inspection_of("python", "-m", "sglang.launch_server"), frameworks.check_sglang, "--enable-metrics"),
    (inspection_of("tritonserver", "--model-repository", "models"), frameworks.check_triton, "mode=opentelemetry"),
    (
        inspection_of("tritonserver", "--allow-metrics=false"),
        frameworks.check_triton,
        "remove --allow-metrics=false",
    ),
    (inspection_of("/bin/ls"), frameworks.check_not_python, "not a Python program"),
    (inspection_of("python", "serve.py", code=STREAM), frameworks.check_stream_usage, "include_usage"),
]


@pytest.mark.parametrize(("inspection", "check", "words"), TROUBLES, ids=lambda value: getattr(value, "__name__", ""))
def test_a_check_finds_its_problem_and_names_the_fix(inspection: Inspection, check: Check, words: str) -> None:
    reported = [
        f"{finding.text}\n{finding.fix}" for finding in check(inspection) if words in f"{finding.text}\n{finding.fix}"
    ]

    assert len(reported) == 1


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_healthy_service_has_no_findings(check: Check) -> None:
    assert list(check(HEALTHY)) == []


# Those whose troubles are real ones: an address, a file system, a control group; or in a file of their own.
ELSEWHERE = {
    "check_collector",
    "check_memory",
    "check_temporary_files",
    "check_batching",
    "check_lists_of_jobs",
    "check_gpus",
}


def test_every_check_has_a_test_case() -> None:
    assert {check.__name__ for check in CHECKS} - ELSEWHERE == {check.__name__ for _, check, _ in TROUBLES}


@pytest.mark.parametrize(
    "code",
    [
        "client.chat.completions.create(stream=True, stream_options={'include_usage': True})",
        "client.chat.completions.create(stream=False)",
        "client.chat.completions.create(stream=stream)",
        "client.chat.completions.create(**options, stream=True)",
        "open('f').create(stream=True)",
    ],
)
def test_a_stream_with_a_variable_usage_option_is_not_reported(code: str) -> None:
    assert list(frameworks.check_stream_usage(inspection_of("python", "serve.py", code=code))) == []


def test_a_vllm_without_the_option_gets_no_advice(tmp_path: Path) -> None:
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "arg_utils.py").write_text("otlp_traces_endpoint = None")
    inspection = with_interpreter(
        inspection_of("vllm", "serve", "m", "--otlp-traces-endpoint=x"), places={"vllm": str(tmp_path)}
    )

    assert list(frameworks.check_vllm(inspection)) == []

    (tmp_path / "engine" / "arg_utils.py").write_text("enable_per_request_metrics = False")

    assert len(list(frameworks.check_vllm(inspection))) == 1


def test_importing_a_related_library_does_not_count_as_the_library() -> None:
    there = {"flask": "3.1.3", "gevent": "26.9.0", "onnxruntime": "1.31.1", "magika": "1.0.3"}
    inspection = with_interpreter(
        inspection_of("python", "serve.py", code="import gevent, magika"), distributions=there
    )

    assert {each.title: each.certain for each in timed_libraries(inspection)} == {"Flask": False, "ONNX Runtime": True}


def test_a_library_with_an_instrumentor_is_not_listed_as_untimed() -> None:
    inspection = with_interpreter(
        inspection_of("python", "serve.py", code="import tensorflow, sklearn, spacy"),
        distributions={"tensorflow": "2.21.0", "scikit-learn": "1.9.1", "spacy": "3.8.0"},
    )

    assert [each.title for each in timed_libraries(inspection) if each.certain] == ["scikit-learn", "TensorFlow"]
    assert untimed_libraries(inspection) == {"spacy": "3.8.0"}
    assert not {library.load().library for library in LIBRARIES} & set(WITHOUT_MODULE.values())


def test_an_argument_too_long_for_a_path_is_not_a_file(tmp_path: Path) -> None:
    (tmp_path / "serve.py").write_text("import torch")

    assert read_sources("serve.py", (f"{'a' * 300}.py", f"{'a' * 300}:app"), tmp_path).imported() == {"torch"}


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

    assert [finding.fix for finding in checks.check_memory(HEALTHY)] != []
    assert list(checks.check_memory(inspection_of("python", "serve.py", STAGELENS_BUFFER_SIZE="1MiB"))) == []


def test_a_missing_collector_in_a_terminal_is_not_a_problem() -> None:
    found = list(checks.check_collector(replace(HEALTHY, alone=True)))

    assert [(finding.fix, finding.hurts) for finding in found] == [("stagelens up", False)]


def test_a_local_run_needs_a_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks.tempfile, "tempdir", str(tmp_path / "nosuch"))

    assert [finding.fix.partition("=")[0] for finding in checks.check_temporary_files(HEALTHY)] == ["TMPDIR"]
    assert list(checks.check_temporary_files(replace(HEALTHY, saved_here=False))) == []


def test_a_gpu_without_nvml_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "DRIVER", tmp_path / "nvidiactl")
    without = list(checks.check_gpus(HEALTHY))
    (tmp_path / "nvidiactl").touch()
    with_nvml = with_interpreter(HEALTHY, distributions={"nvidia-ml-py": "13.615.71"})

    assert [(each.fix, each.hurts) for each in checks.check_gpus(HEALTHY)] == [("pip install 'stagelens[gpu]'", False)]
    assert without == list(checks.check_gpus(with_nvml)) == []
