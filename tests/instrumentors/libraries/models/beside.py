"""Libraries that `make` installs beside the others, and a model of llama.cpp with random weights."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

# Kinds of tokens in a GGUF file.
NORMAL, SPECIAL, BYTE = 1, 3, 6
SIZE, HEADS = 64, 2


def beside(part: str, name: str) -> Any:
    """Import a library that `make PART` installs; without it the test is skipped."""
    folder = Path(__file__).parents[4] / ".venv" / part
    if not (folder / name).is_dir():
        pytest.skip(f"make {part}: {name} is not installed")
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return import_module(name)


def write_llama(
    path: Path, tokens: Sequence[tuple[str, int]], context: int, dtype: Any, add_tokenizer: Callable[[Any], None]
) -> None:
    """Write a model with one layer, which generates only tokens of the kind `NORMAL`."""
    writer = import_module("gguf").GGUFWriter(path, "llama")
    writer.add_context_length(context)
    writer.add_embedding_length(SIZE)
    writer.add_block_count(1)
    writer.add_feed_forward_length(SIZE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(SIZE // HEADS)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(len(tokens))
    add_tokenizer(writer)
    writer.add_token_list([text for text, _ in tokens])
    writer.add_token_types([kind for _, kind in tokens])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    random = np.random.default_rng(0)
    is_normal = np.array([[kind == NORMAL] for _, kind in tokens])
    layer = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    for name in ("token_embd", "output", *(f"blk.0.{part}" for part in layer)):
        rows = SIZE if name.startswith("blk") else len(tokens)
        weights = random.normal(size=(rows, SIZE)) * (is_normal if name == "output" else 1)
        writer.add_tensor(f"{name}.weight", weights.astype(dtype))
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(SIZE, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
