"""sentence-transformers: `encode` and `predict`, on models built on the spot."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling

from stagelens.core.partition import partition
from stagelens.instrumentors.libraries.sentence_transformers import SentenceTransformersInstrumentor
from stagelens.instrumentors.libraries.torch import TorchInstrumentor
from stagelens.instrumentors.libraries.transformers import TransformersInstrumentor
from tests.instrumentors.libraries.tiny_models import bert, tokenizer

if TYPE_CHECKING:
    from conftest import Finished

INSTRUMENTOR = SentenceTransformersInstrumentor
pytestmark = [pytest.mark.stacks, pytest.mark.usefixtures("instrumented", "inner_instrumented")]

STAGES = ["preprocess", "preprocess", "tokenize", "forward", "postprocess"]


@pytest.fixture(name="inner_instrumented")
def fixture_inner_instrumented(embedder: SentenceTransformer, ranker: CrossEncoder) -> Generator[None]:
    """Have models and tokenizers timed too, as in a service that has warmed up."""
    inner = TorchInstrumentor(), TransformersInstrumentor()
    for instrumentor in inner:
        instrumentor.instrument()
    embedder.encode("word1")
    ranker.predict([("word1", "word2")])
    yield
    for instrumentor in inner:
        instrumentor.uninstrument()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    bert().base_model.save_pretrained(folder / "bert")
    tokenizer().save_pretrained(folder / "bert")
    SentenceTransformer(modules=[Transformer(str(folder / "bert")), Pooling(32), Normalize()]).save(
        str(folder / "embedder"), create_model_card=False
    )
    return folder / "embedder"


@pytest.fixture(scope="module")
def embedder(saved: Path) -> SentenceTransformer:
    return SentenceTransformer(str(saved))


@pytest.fixture(scope="module")
def ranker(tmp_path_factory: pytest.TempPathFactory) -> CrossEncoder:
    folder = str(tmp_path_factory.mktemp("models") / "ranker")
    bert(labels=1).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return CrossEncoder(folder)


def intervals(request: Finished) -> list[tuple[str, int, int]]:
    """Return the stages of the only request, by their start."""
    return sorted((mark for mark in request.marks() if not mark[0].startswith("@")), key=lambda mark: mark[1])


def test_encoding_stages_have_no_gap(embedder: SentenceTransformer, in_a_request: Finished) -> None:
    embedding = embedder.encode("word1 word2")
    stages = intervals(in_a_request)
    own = partition(stages, stages[0][1], max(stage[2] for stage in stages))

    assert embedding.shape == (32,)
    assert sorted(in_a_request.stages()) == sorted(STAGES)
    assert own["overhead"] == 0
    assert min(own["preprocess"], own["tokenize"], own["forward"], own["postprocess"]) > 0
    assert in_a_request.facts() == {"@model": "embedder", "@device": "cpu", "@batch": 1}


def test_each_batch_is_prepared_and_run(embedder: SentenceTransformer, in_a_request: Finished) -> None:
    embedder.encode_query(["word1", "word2 word3", "word4"], batch_size=2)

    assert in_a_request.stages().count("forward") == in_a_request.stages().count("tokenize") == 2
    assert in_a_request.facts()["@batch"] == 3


def test_ranking_is_timed_like_predicting(ranker: CrossEncoder, in_a_request: Finished) -> None:
    ranker.rank("word1", ["word2", "word3"])
    stages = intervals(in_a_request)

    assert {stage for stage, _, _ in stages} == {"preprocess", "tokenize", "forward", "postprocess"}
    assert in_a_request.facts() == {"@model": "ranker", "@device": "cpu", "@batch": 2}


def test_manual_preparation_is_preprocess(embedder: SentenceTransformer, in_a_request: Finished) -> None:
    embedder(embedder.preprocess(["word1"]))

    assert in_a_request.stages() == ["tokenize", "preprocess", "forward"]


def test_loading_is_one_load(saved: Path, in_a_request: Finished) -> None:
    SentenceTransformer(str(saved))

    assert in_a_request.stages() == ["load"]


def test_a_process_pool_is_not_timed(
    embedder: SentenceTransformer, in_a_request: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedder, "_multi_process", lambda inputs, **_: np.zeros((len(inputs), 32)))
    pool: Any = {"input": None, "output": None, "processes": []}

    assert embedder.encode(["word1"], pool=pool).shape == (1, 32)
    assert embedder.encode(["word1"], device=["cpu", "cpu"]).shape == (1, 32)
    assert in_a_request.stages() == []
