"""OpenVINO GenAI: a language model of random weights, written as GGUF on the spot."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from stagelens.instrumentors.api import request
from stagelens.instrumentors.libraries.inference_runtimes import OpenVinoInstrumentor

if TYPE_CHECKING:
    from conftest import Finished

FOLDER = Path(__file__).parents[4] / ".venv" / "models"
pytestmark = pytest.mark.stacks
SIZE, HEADS, CONTEXT = 64, 2, 128
# A tokenizer of bytes: printable ones stand for themselves, others for characters after these.
PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
BYTES = [*map(chr, PRINTABLE), *(chr(256 + number) for number in range(256 - len(PRINTABLE)))]
VOCABULARY = ["<unk>", "<s>", "</s>", "AB", *BYTES]


def write_llama(path: Path) -> None:
    writer = import_module("gguf").GGUFWriter(path, "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(SIZE)
    writer.add_block_count(1)
    writer.add_feed_forward_length(SIZE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(SIZE // HEADS)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(len(VOCABULARY))
    writer.add_file_type(1)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(VOCABULARY)
    writer.add_token_types([3, 3, 3, *(1 for _ in VOCABULARY[3:])])
    writer.add_token_merges(["A B"])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    random = np.random.default_rng(0)
    layer = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    for name in ("token_embd", "output", *(f"blk.0.{part}" for part in layer)):
        rows = SIZE if name.startswith("blk") else len(VOCABULARY)
        writer.add_tensor(f"{name}.weight", random.normal(size=(rows, SIZE)).astype(np.float16))
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(SIZE, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def genai() -> Any:
    if not (FOLDER / "openvino_genai").is_dir():
        pytest.skip("make models: openvino-genai is not installed")
    if str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))
    return import_module("openvino_genai")


def test_a_generation_is_one_forward(genai: Any, finished: Finished, tmp_path: Path) -> None:
    write_llama(tmp_path / "tiny.gguf")
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
