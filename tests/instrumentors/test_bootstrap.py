"""`stagelens.instrument()`: every library we know, when the program imports it."""

from __future__ import annotations

import importlib
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from stagelens.instrumentors import bootstrap, import_hooks
from stagelens.instrumentors.bootstrap import Library

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
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "served\n"
