"""Frameworks that take a request where we do not follow it are told with the line to write; nothing is said without need."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest

from stagelens.instrumentors.bootstrap import Library
from stagelens.instrumentors.doctor import batching
from stagelens.instrumentors.doctor.environment import Look
from stagelens.instrumentors.doctor.sources import Sources
from stagelens.instrumentors.doctor.target import target


def looking_at(*words: str, code: str = "", **environment: str) -> Look:
    """Return a look at a command whose one module is *code*; no program of its name need be there."""
    found = replace(target(words, {}), lost="")
    return Look(words, found, environment, sources=Sources({Path("serve.py"): ast.parse(code)}))


BATCH = """
from ray import serve

@serve.batch(max_batch_size=8)
async def batched(xs): ...
"""
DEPLOYMENT = """
from ray import serve

@serve.deployment
class Model: ...
"""
RUNTIME = """
from mlserver import MLModel

class Model(MLModel): ...
"""
SPEC = """
import litserve as ls
ls.LitServer(api, spec=ls.OpenAISpec())
"""


@pytest.fixture(autouse=True)
def without_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """A framework that gets a module of ours is spoken of no more."""
    monkeypatch.setattr(batching, "LIBRARIES", ())


@pytest.mark.parametrize(
    ("look", "told", "cure"),
    [
        (looking_at("serve", "run", "app:app", code=BATCH), "serve.batch (serve.py:4) works", "stagelens.ticket()"),
        (looking_at("serve", "run", "app:app", code=DEPLOYMENT), "serve.deployment (serve.py:4)", "stagelens.request"),
        (looking_at("python", "serve.py", code=RUNTIME), "MLModel (serve.py:4)", "stagelens.request"),
        (looking_at("mlserver", "start", "."), "mlserver runs in workers", "stagelens.request"),
        (looking_at("torchserve", "--start"), "torchserve runs handlers", "ctx.get_request_header"),
        (looking_at("python", "serve.py", code=SPEC), "ls.OpenAISpec (serve.py:3)", "stagelens.request"),
    ],
)
def test_where_a_request_is_lost_the_line_to_write_is_told(look: Look, told: str, cure: str) -> None:
    """Once, as a guess, and not as something that is in the way."""
    (found,) = batching.elsewhere(look)

    assert told in found.text
    assert cure in found.cure
    assert not found.hurts


@pytest.mark.parametrize(
    "look",
    [
        looking_at("python", "serve.py", code="import ray"),
        looking_at("python", "serve.py", code=BATCH.replace("ray", "tornado")),
        looking_at("python", "serve.py", code=f"{BATCH}\nwith stagelens.batch(tickets): ..."),
        looking_at("python", "serve.py", code=DEPLOYMENT.replace("class", "@serve.ingress(app)\nclass")),
        looking_at("mlserver", "start", ".", MLSERVER_PARALLEL_WORKERS="0"),
        looking_at("python", "serve.py", code="import litserve, bentoml, torch"),
    ],
)
def test_who_does_not_use_it_or_has_mended_it_is_told_nothing(look: Look) -> None:
    """A false alarm is worse than silence."""
    assert list(batching.elsewhere(look)) == []


def test_what_has_a_module_of_ours_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adding one takes nothing here."""
    monkeypatch.setattr(batching, "LIBRARIES", (Library("ray.serve", "ray_serve", "Ray"),))

    assert list(batching.elsewhere(looking_at("serve", "run", "app:app", code=BATCH))) == []
