"""A language model of transformers behind FastAPI: tiny, with random weights, so that nothing is downloaded."""

from __future__ import annotations

from typing import Any

import torch
from fastapi import FastAPI
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

# Of your own: AutoTokenizer.from_pretrained("..."), AutoModelForCausalLM.from_pretrained("...")
words = {"<unk>": 0, **{f"word{number}": number + 1 for number in range(63)}}
splitter = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
splitter.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer: Any = PreTrainedTokenizerFast(tokenizer_object=splitter, model_input_names=["input_ids", "attention_mask"])
size: dict[str, Any] = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 128}
model: Any = LlamaForCausalLM(LlamaConfig(vocab_size=len(words), pad_token_id=0, eos_token_id=None, **size)).eval()
torch.set_num_threads(1)

app = FastAPI()


def answer(prompt: str) -> str:
    tokens = model.generate(**tokenizer(prompt, return_tensors="pt"), max_new_tokens=16, do_sample=False)
    return tokenizer.decode(tokens[0])


answer("word1")


@app.get("/answers/{number}")
def write(number: int) -> dict[str, str]:
    return {"text": answer(" ".join(f"word{each % 60}" for each in range(number)))}
