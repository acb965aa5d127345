"""Functions named by a setting: stages, and functions that are not wrapped."""

from __future__ import annotations

import importlib
import logging
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

import stagelens
from stagelens.instrumentors import functions
from tests.instrumentors.conftest import Finished

SOURCE = """
import functools
def prepare(): return 1
class Model:
    name = "resnet"
    def predict(self): return 2
    def __call__(self): return 3
model = Model()
@functools.cache
def cached(): return 4
"""


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Any]:
    (tmp_path / "work_of_the_user.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    named = {"preprocess": "prepare", "decode": "model", "forward": "Model.predict", "load": "cached"}
    entries = [f"{stage}=work_of_the_user:{path}" for stage, path in named.items()]
    monkeypatch.setenv(functions.VARIABLE, ",".join(entries))
    instrumentor = functions.FunctionInstrumentor()
    instrumentor.instrument()
    yield importlib.import_module("work_of_the_user")
    instrumentor.uninstrument()
    sys.modules.pop("work_of_the_user")


def test_functions_and_methods_become_stages(finished: Finished, work: Any) -> None:
    with stagelens.request("job"):
        results = work.prepare(), work.model.predict()

    assert results == (1, 2)
    assert finished.stages() == ["preprocess", "forward"]


@pytest.mark.stacks
def test_a_function_that_is_sent_by_value_needs_no_stagelens(work: Any) -> None:
    import cloudpickle  # noqa: PLC0415 - installed for the second tier

    cloudpickle.register_pickle_by_value(work)
    sent = cloudpickle.dumps(work.prepare)
    cloudpickle.unregister_pickle_by_value(work)
    program = "import pickle, sys; sys.modules['stagelens'] = None; print(pickle.load(sys.stdin.buffer)())"

    assert subprocess.run([sys.executable, "-c", program], input=sent, capture_output=True, check=True).stdout == b"1\n"


@pytest.mark.usefixtures("finished")
def test_a_callable_object_is_not_wrapped(caplog: pytest.LogCaptureFixture, request: Any) -> None:
    with caplog.at_level(logging.WARNING, "stagelens"):
        work = request.getfixturevalue("work")

    assert (work.model.name, work.model()) == ("resnet", 3)
    assert work.cached.cache_info().currsize == 0
    assert len([line for line in caplog.messages if "not a plain function" in line]) == 2
