"""The template of an instrumented library, used on a small made-up library."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Generator
from contextvars import Context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from stagelens.instrumentors.libraries._template import TemplateInstrumentor
from tests.instrumentors.libraries.drivers import instrumenting

if TYPE_CHECKING:
    from conftest import Finished

LIBRARY = """
def prepare(text):
    return text.split()

class Model:
    def __init__(self, name):
        self.name = name

    def predict(self, words):
        return len(words)

class Unnamed(Model):
    def __init__(self):
        pass
"""


@pytest.fixture
def tinymodel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Any]:
    (tmp_path / "tinymodel.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(str(tmp_path))
    with instrumenting(TemplateInstrumentor()):
        yield importlib.import_module("tinymodel")
    sys.modules.pop("tinymodel", None)


def test_its_calls_are_stages_of_the_running_request(tinymodel: Any, in_a_request: Finished) -> None:
    assert tinymodel.Model("tiny").predict(tinymodel.prepare("two words")) == 2
    assert Context().run(tinymodel.Model("tiny").predict, ["outside"]) == 1

    assert in_a_request.stages() == ["preprocess", "forward"]
    assert in_a_request.facts() == {"@model": "tiny"}


def test_an_agent_failure_is_logged_and_the_call_returns(
    tinymodel: Any, in_a_request: Finished, reported: set[str]
) -> None:
    assert tinymodel.Unnamed().predict(["word"]) == 1

    assert reported == {"naming a model of tinymodel"}
    assert in_a_request.stages() == ["forward"]
