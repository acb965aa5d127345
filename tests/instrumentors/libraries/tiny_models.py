"""Models and tokenizers of transformers that are built on the spot, with random weights: nothing is fetched."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

SPECIAL = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
WORDS = (*SPECIAL.values(), *(f"word{number}" for number in range(60)))
SMALL: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}


@cache
def tokenizer() -> Any:
    """Return a tokenizer of whole words, so that every token is a visible part of a stream."""
    words = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token=WORDS[3]))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    made: Any = PreTrainedTokenizerFast(
        tokenizer_object=words,
        padding_side="left",
        model_input_names=["input_ids", "attention_mask"],
        **SPECIAL,
    )
    made.chat_template = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
    return made


@cache
def llama(seed: int = 0) -> Any:
    """Return a decoder that never generates an end token."""
    torch.manual_seed(seed)
    config = LlamaConfig(vocab_size=len(WORDS), max_position_embeddings=256, pad_token_id=0, bos_token_id=1, **SMALL)
    config.eos_token_id = None
    model: Any = LlamaForCausalLM(config).eval()
    model.generation_config.eos_token_id = None
    return model


@cache
def t5() -> Any:
    torch.manual_seed(0)
    config = T5Config(vocab_size=len(WORDS), d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
    model: Any = T5ForConditionalGeneration(config).eval()
    model.generation_config.decoder_start_token_id = 0
    model.generation_config.eos_token_id = None
    return model


@cache
def bert(labels: int = 2) -> Any:
    torch.manual_seed(0)
    config = BertConfig(vocab_size=len(WORDS), **SMALL)
    config.num_labels = labels
    return BertForSequenceClassification(config).eval()
