"""Frameworks with uninstrumented requests are reported with the line that fixes them; others are not."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest

from stagelens.instrumentors.bootstrap import Library
from stagelens.instrumentors.doctor import frameworks
from stagelens.instrumentors.doctor.inspection import Inspection, Sources
from stagelens.instrumentors.doctor.target import find_target


def inspection_of(*words: str, code: str = "", **environment: str) -> Inspection:
    """Return an inspection of a command whose one module is *code*; its program need not exist."""
    found = replace(find_target(words, {}), lost="")
    return Inspection(words, found, environment, sources=Sources({Path("serve.py"): ast.parse(code)}))


SPEC = """
import litserve as ls
ls.LitServer(api, spec=ls.OpenAISpec())
"""


@pytest.fixture(autouse=True)
def without_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """A framework with an instrumentor is no longer reported."""
    monkeypatch.setattr(frameworks, "LIBRARIES", ())


@pytest.mark.parametrize(
    ("inspection", "text", "fix"),
    [
        (inspection_of("torchserve", "--start"), "torchserve runs handlers", "ctx.get_request_header"),
        (inspection_of("python", "serve.py", code=SPEC), "ls.OpenAISpec (serve.py:3)", "stagelens.request"),
        (
            inspection_of("python", "serve.py", code="import multiprocessing as mp\njobs = mp.Queue()"),
            "mp.Queue (serve.py:2) carries jobs to another process",
            "stagelens.ticket()",
        ),
    ],
)
def test_an_uncounted_framework_request_is_reported_with_the_fix(inspection: Inspection, text: str, fix: str) -> None:
    (found,) = frameworks.check_batching(inspection)

    assert text in found.text
    assert fix in found.fix
    assert not found.hurts


@pytest.mark.parametrize(
    "inspection",
    [
        inspection_of("python", "serve.py", code=f"{SPEC}\nwith stagelens.batch(tickets): ..."),
        inspection_of("python", "serve.py", code=f"{SPEC}\nserve.ingress(app)"),
        inspection_of("python", "serve.py", code="import litserve, bentoml, torch"),
        inspection_of("python", "serve.py", code="import multiprocessing, queue\njobs = queue.Queue()"),
    ],
)
def test_an_unused_or_fixed_framework_has_no_finding(inspection: Inspection) -> None:
    assert list(frameworks.check_batching(inspection)) == []


LIST = "import asyncio\nfuture = asyncio.get_running_loop().create_future()\njobs.append((x, future))"


@pytest.mark.parametrize("more", ["", "jobs = queue.SimpleQueue()"])
def test_a_batcher_with_a_list_is_reported(more: str) -> None:
    (found,) = frameworks.check_lists_of_jobs(inspection_of("python", "serve.py", code=f"{LIST}\n{more}"))

    assert found.text.startswith("serve.py:2 creates a future")
    assert "stagelens.ticket()" in found.fix
    assert not found.hurts


@pytest.mark.parametrize("more", ["jobs = asyncio.Queue()", "ticket = stagelens.ticket()"])
def test_a_batcher_with_a_queue_or_a_ticket_is_not_reported(more: str) -> None:
    assert list(frameworks.check_lists_of_jobs(inspection_of("python", "serve.py", code=f"{LIST}\n{more}"))) == []


def test_instrumented_libraries_are_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frameworks, "LIBRARIES", (Library("ts", "torchserve", "TorchServe"),))

    assert list(frameworks.check_batching(inspection_of("torchserve", "--start"))) == []
