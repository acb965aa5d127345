"""Our modules are found by OpenTelemetry's own launcher, which is no dependency of ours."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

from stagelens.instrumentors.bootstrap import LIBRARIES
from stagelens.instrumentors.functions import FunctionInstrumentor
from stagelens.instrumentors.instrumentor import Instrumentor

PROGRAM = """
import starlette.applications, onnxruntime
from stagelens.instrumentors.libraries.starlette import StarletteInstrumentor
from stagelens.instrumentors.libraries.onnxruntime import OnnxRuntimeInstrumentor
patched = starlette.applications.Starlette.__call__, onnxruntime.InferenceSession.run
print(*(hasattr(method, "__wrapped__") and not hasattr(method.__wrapped__, "__wrapped__") for method in patched))
"""


def test_opentelemetry_instrument_loads_the_instrumentors(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(PROGRAM)
    launcher = Path(sys.executable).parent / "opentelemetry-instrument"
    env = {**os.environ, "OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "none"}
    completed = subprocess.run(
        [str(launcher), sys.executable, "app.py"], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )

    assert completed.stdout == "True True\n", completed.stderr


def test_both_launchers_together_patch_each_library_once(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(PROGRAM)
    launcher = str(Path(sys.executable).parent / "opentelemetry-instrument")
    ours = [sys.executable, "-m", "stagelens", "run", "--"]
    env = {**os.environ, "OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "none"}
    for command in ([*ours, launcher], [launcher, *ours]):
        completed = subprocess.run(
            [*command, sys.executable, "app.py"], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
        )

        assert completed.stdout == "True True\n", completed.stderr


def test_named_stages_work_with_the_opentelemetry_launcher(tmp_path: Path) -> None:
    (tmp_path / "steps.py").write_text("def prepare(): ...\n")
    (tmp_path / "app.py").write_text("import steps; print('enter' in str(steps.prepare.__code__.co_consts))")
    ours = [sys.executable, "-m", "stagelens", "run", "--stage", "preprocess=steps:prepare", "--"]
    launcher = str(Path(sys.executable).parent / "opentelemetry-instrument")
    env = {**os.environ, "OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "none"}
    completed = subprocess.run(
        [*ours, launcher, sys.executable, "app.py"], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )

    assert completed.stdout == "True\n", completed.stderr


def test_every_library_module_is_an_entry_point() -> None:
    found = {point.load() for point in entry_points(group="opentelemetry_instrumentor") if "stagelens" in point.value}

    assert found == {FunctionInstrumentor, *(library.load() for library in LIBRARIES)}
    for cls in found:
        assert issubclass(cls, Instrumentor)
        # Of several servers, any one is enough.
        assert cls().instrumentation_dependencies() in ((cls.library,), ())
