"""transformers: pipelines, tokenizers and loading, on models built on the spot."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaForCausalLM,
    Pipeline,
    TextStreamer,
    ViTImageProcessor,
    WhisperFeatureExtractor,
    pipeline,
)

from stagelens.core.partition import partition
from stagelens.instrumentors import instrumentor, records
from stagelens.instrumentors.libraries.preprocessing import TokenizersInstrumentor
from stagelens.instrumentors.libraries.transformers import TransformersInstrumentor, repository_name
from tests.instrumentors.libraries.drivers import instrumenting
from tests.instrumentors.libraries.tiny_models import bert, llama, tokenizer

if TYPE_CHECKING:
    from conftest import Finished

INSTRUMENTOR = TransformersInstrumentor
pytestmark = pytest.mark.usefixtures("instrumented")


class Lengths(Pipeline):
    """A pipeline of the user's own, that may fail."""

    fails_in = ""

    def _sanitize_parameters(self, **_: Any) -> Any:
        return {}, {}, {}

    def preprocess(self, input_: str, **_: Any) -> Any:
        return self._step("preprocess", {"word": input_})

    def _forward(self, input_tensors: Any, **_: Any) -> Any:
        return self._step("forward", {"length": len(input_tensors["word"])})

    def postprocess(self, model_outputs: Any, **_: Any) -> Any:
        return self._step("postprocess", model_outputs["length"])

    def _step(self, name: str, output: Any) -> Any:
        if name == self.fails_in:
            raise KeyError(name)
        return output


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A folder that a model and its tokenizer were saved in."""
    llama().save_pretrained(tmp_path / "my-model")
    tokenizer().save_pretrained(tmp_path / "my-model")
    return tmp_path / "my-model"


@pytest.fixture
def classify() -> Any:
    return pipeline("text-classification", model=bert(), tokenizer=tokenizer())


@pytest.fixture
def lengths() -> Lengths:
    return Lengths(model=bert(), tokenizer=tokenizer())


def intervals(request: Finished) -> list[tuple[str, int, int]]:
    """Return the stages of the only request, by their start."""
    return sorted((mark for mark in request.marks() if not mark[0].startswith("@")), key=lambda mark: mark[1])


def test_a_pipeline_has_three_stages_and_its_tokenizer(classify: Any, in_a_request: Finished) -> None:
    results = classify("word1 word2")
    preprocess, tokenize, forward, postprocess = intervals(in_a_request)

    assert [mark[0] for mark in intervals(in_a_request)] == ["preprocess", "tokenize", "forward", "postprocess"]
    assert preprocess[1] <= tokenize[1] <= tokenize[2] <= preprocess[2] == forward[1]
    assert forward[2] == postprocess[1]
    assert partition(intervals(in_a_request), preprocess[1], postprocess[2])["overhead"] == 0
    assert in_a_request.facts() == {"@model": "BertForSequenceClassification", "@device": "cpu"}
    assert results[0]["label"] in {"LABEL_0", "LABEL_1"}


def test_a_list_goes_through_in_batches(classify: Any, in_a_request: Finished) -> None:
    results = classify(["word1", "word2 word3", "word4"], batch_size=2)

    assert len(results) == 3
    assert [mark[0] for mark in intervals(in_a_request) if mark[0] != "tokenize"] == [
        "preprocess",
        "forward",
        "postprocess",
        "postprocess",
        "preprocess",
        "forward",
        "postprocess",
    ]
    assert in_a_request.facts()["@batch"] == 3


def test_a_lazy_pipeline_is_timed_while_it_is_consumed(lengths: Lengths, in_a_request: Finished) -> None:
    results: list[Any] = []
    between: list[int] = []
    lazy: Any = lengths(word for word in ("a", "bc"))
    for result in lazy:
        between.append(records.clock())
        results.append(result)

    stages = intervals(in_a_request)
    assert results == [1, 2]
    assert [mark[0] for mark in stages] == ["preprocess", "forward", "postprocess"] * 2
    assert stages[2][2] < between[0] < stages[3][1]


def test_a_pipeline_in_chunks_is_prepared_between_its_forwards(in_a_request: Finished) -> None:
    zero_shot = pipeline("zero-shot-classification", model=bert(), tokenizer=tokenizer())
    in_a_request[0][0][3:] = []
    zero_shot("word1", candidate_labels=["word2", "word3"], hypothesis_template="word4 {}")
    stages = intervals(in_a_request)

    assert [mark[0] for mark in stages if mark[0] != "tokenize"] == ["preprocess", "forward", "forward", "postprocess"]
    assert partition(stages, stages[0][1], stages[-1][2])["overhead"] == 0
    assert in_a_request.facts()["@batch"] == 1


@pytest.mark.parametrize(
    ("fails_in", "stages"),
    [
        ("preprocess", ["preprocess"]),
        ("forward", ["preprocess", "forward", "postprocess"]),
        ("postprocess", ["preprocess", "forward", "postprocess"]),
    ],
)
def test_an_exception_of_the_pipeline_is_unchanged(
    lengths: Lengths, in_a_request: Finished, fails_in: str, stages: list[str]
) -> None:
    lengths.fails_in = fails_in
    for inputs in ("a", ["a"]):
        with pytest.raises(KeyError):
            lengths(inputs)
        assert [mark[0] for mark in intervals(in_a_request)] == stages
        in_a_request[0][0][3:] = []
    lengths.fails_in = ""

    assert lengths("abc") == 3
    assert [mark[0] for mark in intervals(in_a_request)] == ["preprocess", "forward", "postprocess"]


def test_a_pipeline_that_generates_prefills_and_decodes(in_a_request: Finished) -> None:
    write = pipeline("text-generation", model=llama(), tokenizer=tokenizer())
    write("word1", max_new_tokens=1)
    in_a_request[0][0][3:] = []
    write("word1 word2", max_new_tokens=3)

    # The words are decoded once, or twice before Transformers 5.1.
    kinds = dict.fromkeys(mark[0] for mark in intervals(in_a_request))
    assert list(kinds) == ["preprocess", "tokenize", "forward", "prefill", "decode", "postprocess"]
    assert in_a_request.facts()["@tokens_out"] == 3


@pytest.fixture
def own_tokenizers(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """Instrument the tokenizers inside too, and record calls of any duration."""
    monkeypatch.setattr("stagelens.instrumentors.instrumentor.MIN_CALL_NS", 0)
    with instrumenting(TokenizersInstrumentor()):
        yield


@pytest.mark.usefixtures("own_tokenizers")
@pytest.mark.parametrize(
    ("call", "stage"),
    [
        (lambda words: words(["word1", "word2"], padding=True, return_tensors="pt"), "tokenize"),
        (lambda words: words.encode("word1"), "tokenize"),
        (lambda words: words.apply_chat_template([{"role": "user", "content": "word1"}]), "tokenize"),
        (lambda words: words.decode([4, 5]), "postprocess"),
        (lambda words: words.batch_decode([[4], [5]]), "postprocess"),
    ],
)
def test_a_tokenizer_is_one_stage(in_a_request: Finished, call: Any, stage: str) -> None:
    call(tokenizer())

    assert in_a_request.stages() == [stage]
    assert records.current.get() is in_a_request[0][0]


def test_processors_are_preprocess(in_a_request: Finished, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instrumentor, "MIN_CALL_NS", 0)
    extract, resize = WhisperFeatureExtractor(feature_size=8), ViTImageProcessor()
    extract(np.zeros(1600, np.float32), sampling_rate=16_000)
    assert in_a_request.stages() == ["preprocess"]
    resize(np.zeros((8, 8, 3), np.uint8))

    assert len(in_a_request.stages()) > 1
    assert set(in_a_request.stages()) == {"preprocess"}


@pytest.mark.usefixtures("own_tokenizers")
def test_decoding_inside_of_generate_is_no_stage(in_a_request: Finished, capsys: pytest.CaptureFixture[str]) -> None:
    words, model = tokenizer(), llama()
    inputs = words("word1", return_tensors="pt", return_token_type_ids=False)
    model.generate(**inputs, max_new_tokens=3, do_sample=False, streamer=TextStreamer(words))

    assert capsys.readouterr().out
    assert in_a_request.stages().count("tokenize") == 1
    assert "postprocess" not in in_a_request.stages()


def test_loading_is_one_load(saved: Path, in_a_request: Finished) -> None:
    owners: list[Any] = [AutoModelForCausalLM, AutoTokenizer, AutoConfig, LlamaForCausalLM]
    _, words, config, model = [owner.from_pretrained(saved) for owner in owners]
    model.generate(words("word1", return_tensors="pt")["input_ids"], max_new_tokens=1)

    assert type(config) is type(model.config)
    assert in_a_request.stages() == [*["load"] * 4, "tokenize", "load"]
    assert in_a_request.facts()["@model"] == "my-model"


def test_setting_up_a_pipeline_is_load(saved: Path, in_a_request: Finished) -> None:
    pipeline("text-generation", model=str(saved))

    assert set(in_a_request.stages()) == {"load"}


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("meta-llama/Llama-3.1-8B", "Llama-3.1-8B"),
        ("gpt2", "gpt2"),
        ("/models/my-llama/", "my-llama"),
        ("/models/my-llama/1", "my-llama"),
        ("/home/somebody/.cache/huggingface/hub/models--org--tiny.v2/snapshots/" + "0" * 40, "tiny.v2"),
        ("/home/somebody", ""),
        ("/Users/somebody", ""),
        ("./model", ""),
        (".", ""),
    ],
)
def test_a_model_is_named_by_its_repository(path: str, name: str) -> None:
    assert repository_name(path) == name


def test_instrumentation_imports_no_further_modules() -> None:
    loaded = "print(*sorted(name for name in sys.modules if not name.startswith(('stagelens', 'opentelemetry'))))"
    lists = [
        set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())
        for code in (
            f"import sys, transformers; {loaded}",
            f"import sys, stagelens; stagelens.instrument(); import transformers; {loaded}",
        )
    ]

    assert {name for name in lists[1] - lists[0] if name.startswith(("transformers", "torch", "tokenizers"))} == set()
