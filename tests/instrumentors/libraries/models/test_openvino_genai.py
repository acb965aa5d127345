"""OpenVINO GenAI: a language model of random weights, written as GGUF on the spot."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from stagelens.instrumentors.api import request
from stagelens.instrumentors.libraries.inference_runtimes import OpenVinoInstrumentor
from tests.instrumentors.libraries.models.beside import NORMAL, SPECIAL, beside, write_llama

if TYPE_CHECKING:
    from conftest import Finished

pytestmark = pytest.mark.stacks
# A tokenizer of bytes: printable ones stand for themselves, others for characters after these.
PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
BYTES = [*map(chr, PRINTABLE), *(chr(256 + number) for number in range(256 - len(PRINTABLE)))]
VOCABULARY = [*((name, SPECIAL) for name in ("<unk>", "<s>", "</s>")), *((text, NORMAL) for text in ("AB", *BYTES))]


def add_tokenizer(writer: Any) -> None:
    writer.add_file_type(1)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_merges(["A B"])


def test_a_generation_is_one_forward(finished: Finished, tmp_path: Path) -> None:
    genai = beside("models", "openvino_genai")
    write_llama(tmp_path / "tiny.gguf", VOCABULARY, 128, np.float16, add_tokenizer)
    instrumentor = OpenVinoInstrumentor()
    instrumentor.instrument()
    with request("load"):
        pipeline = genai.LLMPipeline(str(tmp_path / "tiny.gguf"), "CPU")
    assert finished.stages() == ["load"]
    finished.clear()

    options: dict[str, Any] = {"max_new_tokens": 8, "ignore_eos": True, "do_sample": False}
    with request("generate"):
        text = pipeline.generate("AB", **options)
    assert finished.stages() == ["forward"]
    assert finished.facts() == {"@model": "tiny"}
    finished.clear()

    with request("generate"):
        pipeline(["AB", "A"], **options)
    assert finished.stages() == ["forward"]
    assert finished.facts() == {"@model": "tiny", "@batch": 2}
    finished.clear()

    instrumentor.uninstrument()
    with request("generate"):
        assert pipeline.generate("AB", **options) == text
    assert finished.stages() == []
