"""CTranslate2: models that are built on the spot, converted, and loaded as the library does it."""

from __future__ import annotations

from collections.abc import Generator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers import BertConfig, BertModel

from stagelens.instrumentors.api import request
from stagelens.instrumentors.libraries.inference_runtimes import CTranslate2Instrumentor
from tests.instrumentors.libraries import tiny_models
from tests.instrumentors.libraries.drivers import instrumenting
from tests.instrumentors.libraries.models.beside import beside

if TYPE_CHECKING:
    from conftest import Finished

pytestmark = pytest.mark.stacks
TOKENS = [["word1", "word2"], ["word3"], ["word4"]]


def bert() -> Any:
    torch.manual_seed(0)
    # The attribute is what the converter asks for and transformers no longer has.
    options: dict[str, Any] = {**tiny_models.SMALL, "position_embedding_type": "absolute"}
    return BertModel(BertConfig(vocab_size=len(tiny_models.WORDS), **options))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    beside("models", "ctranslate2")
    folder = tmp_path_factory.mktemp("ctranslate2")
    for name, make in (("t5", tiny_models.t5), ("llama", tiny_models.llama), ("bert", bert)):
        make().save_pretrained(folder / "hub" / name)
        tiny_models.tokenizer().save_pretrained(folder / "hub" / name)
        converters = import_module("ctranslate2.converters")
        converters.TransformersConverter(str(folder / "hub" / name)).convert(str(folder / name))
    return folder


@pytest.fixture(autouse=True)
def ctranslate2(folder: Path) -> Generator[Any]:  # noqa: ARG001 - makes it importable
    with instrumenting(CTranslate2Instrumentor()):
        yield import_module("ctranslate2")


@pytest.mark.parametrize(
    ("kind", "method"),
    [
        ("Translator", "translate_batch"),
        ("Generator", "generate_batch"),
        ("Generator", "score_batch"),
        ("Generator", "forward_batch"),
        ("Encoder", "forward_batch"),
    ],
)
def test_a_batch_is_one_forward(ctranslate2: Any, folder: Path, finished: Finished, kind: str, method: str) -> None:
    name = {"Translator": "t5", "Generator": "llama", "Encoder": "bert"}[kind]
    with request("load"):
        model = getattr(ctranslate2, kind)(str(folder / name))
    assert finished.stages() == ["load"]
    finished.clear()

    with request("predict"):
        result = getattr(model, method)(TOKENS)
    assert finished.stages() == ["forward"]
    assert finished.facts() == {"@model": name, "@batch": len(TOKENS)}

    CTranslate2Instrumentor().uninstrument()
    assert type(result) is type(getattr(model, method)(TOKENS))


def test_the_wait_for_an_asynchronous_call_is_the_forward(ctranslate2: Any, folder: Path, finished: Finished) -> None:
    model = ctranslate2.Generator(str(folder / "llama"))
    stages: list[str] = []
    while not stages:
        with request("predict"):
            for result in model.generate_batch(TOKENS, asynchronous=True, max_length=200):
                result.result()
        stages = finished.stages()
        finished.clear()
    assert set(stages) == {"forward"}


def test_a_script_counts_no_call_that_only_starts_the_work(ctranslate2: Any, folder: Path, script: Finished) -> None:
    model = ctranslate2.Generator(str(folder / "llama"))
    model.generate_batch(TOKENS, asynchronous=True)[0].result()
    assert not script
    model.generate_batch(TOKENS)
    assert [record[3] for record in script] == ["llama"]
