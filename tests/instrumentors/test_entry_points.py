"""Our modules are found by OpenTelemetry's own launcher, which is no dependency of ours."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from stagelens.instrumentors import bootstrap
from stagelens.instrumentors.instrumentor import Instrumentor

PROGRAM = """
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
    ("command", "program", "printed"),
    [
        ([LAUNCHER], PROGRAM, "True True\n"),
        ([*OURS, "--", LAUNCHER], PROGRAM, "True True\n"),
        ([LAUNCHER, *OURS, "--"], PROGRAM, "True True\n"),
        ([*OURS, "--stage", "preprocess=steps:prepare", "--", LAUNCHER], STEPS, "True\n"),
    ],
    ids=["theirs alone", "ours around theirs", "theirs around ours", "with a named stage"],
)
def test_the_launcher_of_opentelemetry_patches_each_library_once(
    tmp_path: Path, command: list[str], program: str, printed: str
) -> None:
    (tmp_path / "steps.py").write_text("def prepare(): ...\n")
    (tmp_path / "app.py").write_text(program)
    env = {**os.environ, "OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "none"}
    completed = subprocess.run(
        [*command, sys.executable, "app.py"], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )

    assert completed.stdout == printed, completed.stderr


def test_the_opentelemetry_launcher_leaves_out_disabled_libraries(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(PROGRAM)
    env = {**os.environ, "OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "none"}
    printed = {
        disabled: subprocess.run(
            [LAUNCHER, sys.executable, "app.py"],
            cwd=tmp_path,
            env={**env, "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": disabled},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for disabled in ("flask, stagelens_onnxruntime", "stagelens")
    }

    assert printed == {"flask, stagelens_onnxruntime": "True False\n", "stagelens": "False False\n"}


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
