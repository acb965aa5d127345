"""FastAPI around a pipeline and a `generate` of transformers: tiny models with random weights, that sleep."""

from __future__ import annotations

import threading
import time
from typing import Any

import torch
from fastapi import FastAPI, Request
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    TextClassificationPipeline,
)

from .planted import ARRIVED, WARM_UP, Plan, noting_arrival

torch.set_num_threads(1)
TOKENS = 12
PAD, UNKNOWN = "<pad>", "<unk>"
WORDS = (PAD, "<s>", "</s>", UNKNOWN, *(f"word{number}" for number in range(60)))
TEXT = "word1 word2 word3 word4 word5"
SMALL: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}


class Running(threading.local):
    """The plan of the request that this thread answers, and when its steps ended."""

    plan: Plan | None = None
    steps: list[int]


running = Running()


class SleepyBert(BertForSequenceClassification):
    """A classifier that takes its time."""

    def forward(self, *args: Any, **options: Any) -> Any:
        """Sleep, then compute."""
        plan = running.plan
        if plan is None:
            return super().forward(*args, **options)
        with plan.measured("forward"):
            time.sleep(plan.asked["forward"])
            return super().forward(*args, **options)


class SleepyLlama(LlamaForCausalLM):
    """A decoder that takes its time for each token, and more for the first."""

    def forward(self, *args: Any, **options: Any) -> Any:
        """Sleep, then compute."""
        plan = running.plan
        if plan is not None:
            time.sleep(plan.asked["per_token" if running.steps else "prefill"])
        result = super().forward(*args, **options)
        if plan is not None:
            running.steps.append(time.perf_counter_ns())
        return result


class SleepyPipeline(TextClassificationPipeline):
    """A pipeline whose other steps take their time too."""

    def preprocess(self, *args: Any, **options: Any) -> Any:
        """Sleep, then tokenize."""
        if running.plan is not None:
            # Alone: the tokenizer is a stage of its own.
            running.plan.spend("preprocess")
        return super().preprocess(*args, **options)

    def postprocess(self, *args: Any, **options: Any) -> Any:
        """Sleep, then label."""
        plan = running.plan
        if plan is None:
            return super().postprocess(*args, **options)
        with plan.measured("postprocess"):
            time.sleep(plan.asked["postprocess"])
            return super().postprocess(*args, **options)


def _tokenizer() -> Any:
    words = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token=WORDS[3]))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=words, model_input_names=["input_ids", "attention_mask"], pad_token=PAD, unk_token=UNKNOWN
    )


def _llama() -> Any:
    made: Any = SleepyLlama(LlamaConfig(vocab_size=len(WORDS), pad_token_id=0, bos_token_id=1, **SMALL)).eval()
    # It never ends by itself.
    made.config.eos_token_id = made.generation_config.eos_token_id = None
    return made


tokenizer, llama = _tokenizer(), _llama()
bert: Any = SleepyBert(BertConfig(vocab_size=len(WORDS), **SMALL)).eval()
classify: Any = SleepyPipeline(model=bert, tokenizer=tokenizer)
prompt = tokenizer(TEXT, return_tensors="pt")


def write(plan: Plan) -> None:
    """Generate, and note how long it took to the first token and from there on."""
    running.steps = []
    started = time.perf_counter_ns()
    llama.generate(**prompt, max_new_tokens=TOKENS, do_sample=False)
    ended = time.perf_counter_ns()
    first, last = running.steps[0], running.steps[-1]
    plan.add("prefill", first - started)
    plan.add("decode", ended - first)
    plan.add("per_token", (last - first) // (TOKENS - 1))
    plan.add("first_token", time.time_ns() - plan.arrived - (time.perf_counter_ns() - first))


def pipeline(request: Request, asked: dict[str, float]) -> dict[str, Any]:
    """Classify a text."""
    plan = running.plan = Plan(asked, request.scope["state"][ARRIVED])
    classify(TEXT)
    return plan.answer()


def generate(request: Request, asked: dict[str, float]) -> dict[str, Any]:
    """Write a text."""
    plan = running.plan = Plan(asked, request.scope["state"][ARRIVED])
    write(plan)
    return plan.answer()


classify(TEXT)
running.plan = Plan({**WARM_UP, "prefill": 0.001, "per_token": 0.001})
write(running.plan)
running.plan = None
api = FastAPI()
api.post("/pipeline")(pipeline)
api.post("/generate")(generate)
app = noting_arrival(api)
