"""`stagelens.instrument()`: every library we know, when the program imports it."""

from __future__ import annotations

import importlib
import logging
import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from stagelens.instrumentors import bootstrap, import_hooks
from stagelens.instrumentors.bootstrap import Library
from stagelens.instrumentors.instrumentor import Instrumentor

PROGRAM = """
import sys, stagelens
stagelens.instrument()
def loaded(): return ["stagelens.instrumentors.libraries." + name in sys.modules for name in ("asgi", "torch")]
before = loaded()
import starlette.applications
print(before, loaded())
"""


def test_an_instrumentor_is_loaded_with_its_library() -> None:
    completed = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)

    assert completed.stdout == "[False, False] [True, False]\n"


def test_a_failing_instrumentor_does_not_affect_the_import(
    reported: set[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    (tmp_path / "a_library_of_nobody.py").write_text("VALUE = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(import_hooks, "_hooks", {})
    monkeypatch.setattr(bootstrap, "_instrumented", set())
    monkeypatch.setattr(bootstrap, "LIBRARIES", (Library("a_library_of_nobody", "no_such_module", "X"),))
    with caplog.at_level(logging.WARNING, "stagelens"):
        bootstrap.instrument()
        bootstrap.instrument()
        module = importlib.import_module("a_library_of_nobody")

    assert module.VALUE == 1
    assert reported == {"instrumenting a_library_of_nobody"}
    assert len(caplog.records) == 1


@pytest.mark.parametrize("broken", ["sys.stderr.close()", "sys.stderr = None", "os.close(2)"])
def test_a_log_that_cannot_be_written_raises_nothing_into_the_host(broken: str) -> None:
    code = f"""
import logging, os, sys
import stagelens
stagelens.instrument()
from stagelens.instrumentors import import_hooks, instrumentor
logging.basicConfig(level="INFO", stream=open(os.devnull, "w"))
logging.getLogger().handlers[0].stream.close()
{broken}
try:
    raise ValueError("ours")
except ValueError:
    instrumentor.log_failure("timing a request")
print("served")
"""
    # Without a file for stderr Python cannot write its own report of the handler's failure, and says so at exit, by the status 120.
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.stdout == "served\n"


PATCHED = """
import starlette.applications, onnxruntime
from stagelens.instrumentors.libraries.starlette import StarletteInstrumentor
from stagelens.instrumentors.libraries.onnxruntime import OnnxRuntimeInstrumentor
patched = starlette.applications.Starlette.__call__, onnxruntime.InferenceSession.run
print(*(hasattr(method, "__wrapped__") and not hasattr(method.__wrapped__, "__wrapped__") for method in patched))
"""


LAUNCHER = str(Path(sys.executable).parent / "opentelemetry-instrument")
OURS = [sys.executable, "-m", "stagelens", "run"]
STEPS = "import steps; print('enter' in str(steps.prepare.__code__.co_consts))"


@pytest.mark.parametrize(
    ("command", "program", "disabled", "printed"),
    [
        ([LAUNCHER], PATCHED, "", "True True\n"),
        ([*OURS, "--", LAUNCHER], PATCHED, "", "True True\n"),
        ([LAUNCHER, *OURS, "--"], PATCHED, "", "True True\n"),
        ([*OURS, "--stage", "preprocess=steps:prepare", "--", LAUNCHER], STEPS, "", "True\n"),
        ([LAUNCHER], PATCHED, "flask, stagelens_onnxruntime", "True False\n"),
        ([LAUNCHER], PATCHED, "stagelens", "False False\n"),
    ],
    ids=["theirs alone", "ours around theirs", "theirs around ours", "with a named stage", "disabled", "all disabled"],
)
def test_the_launcher_of_opentelemetry_patches_each_enabled_library_once(
    tmp_path: Path, command: list[str], program: str, disabled: str, printed: str
) -> None:
    (tmp_path / "steps.py").write_text("def prepare(): ...\n")
    (tmp_path / "app.py").write_text(program)
    env = {**os.environ, **{f"OTEL_{signal}_EXPORTER": "none" for signal in ("TRACES", "METRICS", "LOGS")}}
    completed = subprocess.run(
        [*command, sys.executable, "app.py"],
        cwd=tmp_path,
        env=env | {"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": disabled},
        capture_output=True,
        text=True,
        check=False,
    )

    assert completed.stdout == printed, completed.stderr


def test_stagelens_is_one_entry_point() -> None:
    points = [point for point in entry_points(group="opentelemetry_instrumentor") if "stagelens" in point.value]

    assert [(point.name, point.load()) for point in points] == [("stagelens", bootstrap.StagelensInstrumentor)]


def test_every_library_is_disabled_by_its_own_name() -> None:
    for library in bootstrap.LIBRARIES:
        assert f"stagelens_{library.module}" in library.names()
        # Of several servers, any one is enough.
        cls = library.load()
        assert issubclass(cls, Instrumentor)
        assert cls().instrumentation_dependencies() in ((cls.library,), ())
