"""Every way to run a model, with secrets in inputs, paths and messages."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from shutil import copyfile
from typing import Any

import magika
import numpy as np
import onnxruntime
import torch
from planted import VISIBLE, fail, secret
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from transformers import pipeline

from tests.instrumentors.libraries import tiny_models as tiny

PROMPT = secret("prompt")


class Models:
    def __init__(self, folder: Path) -> None:
        self._folder = folder / secret("folder")
        self._folder.mkdir()
        self._tokenizer = tiny.tokenizer()
        self._tokenizer.add_tokens([secret("vocabulary")])
        for model, name in ((tiny.llama(), "llama"), (tiny.bert(), "bert")):
            model.resize_token_embeddings(len(self._tokenizer))
            for saved in (model, self._tokenizer):
                saved.save_pretrained(self._folder / f"{VISIBLE}-{name}")
        torch.save({secret("weights"): torch.ones(2)}, self._folder / "weights.pt")
        self._magika = magika.Magika()
        packed = next((Path(magika.__file__).parent / "models").rglob("*.onnx"))
        self._onnx = Path(copyfile(packed, self._folder / f"{VISIBLE}.onnx"))

    def ways(self) -> dict[str, Callable[[], object]]:
        return {
            "onnx": self.onnx,
            "magika": self.magika,
            "torch": self.torch,
            "pipeline": self.pipeline,
            "generate": self.generate,
            "embed": self.embed,
            "threads": self.threads,
        }

    def onnx(self) -> None:
        session = onnxruntime.InferenceSession(self._onnx)
        tensor = session.get_inputs()[0]
        session.run(None, {tensor.name: np.zeros((1, *tensor.shape[1:]), np.int32)})
        fail(session.run, None, {secret("inputname"): np.zeros(1)})

    def magika(self) -> None:
        for _ in range(2):
            self._magika.identify_bytes(PROMPT.encode() * 10)

    def torch(self) -> None:
        torch.load(self._folder / "weights.pt")
        module = Echo()
        for text in (PROMPT, PROMPT, ""):
            fail(module, text)

    def pipeline(self) -> None:
        classify: Any = pipeline("text-classification", str(self._folder / f"{VISIBLE}-bert"))
        classify([PROMPT, secret("vocabulary")])

    def generate(self) -> None:
        model: Any = tiny.LlamaForCausalLM.from_pretrained(self._folder / f"{VISIBLE}-llama")
        for _ in range(2):
            prompt = self._tokenizer([f"{PROMPT} {secret('vocabulary')}"], return_tensors="pt")
            generated = model.generate(**prompt, max_new_tokens=4, do_sample=False)
            self._tokenizer.batch_decode(generated)

    def embed(self) -> None:
        inner = Transformer(str(self._folder / f"{VISIBLE}-bert"))
        model = SentenceTransformer(modules=[inner, Pooling(32)], device="cpu")
        for _ in range(2):
            model.encode([PROMPT])

    def threads(self) -> None:
        with ThreadPoolExecutor(1, thread_name_prefix=secret("pool")) as pool:
            list(pool.map(str.upper, [PROMPT, PROMPT]))
            asyncio.run(asyncio.wait_for(asyncio.to_thread(str.upper, PROMPT), 60))
        thread = threading.Thread(target=str.upper, args=(PROMPT,), name=secret("thread"))
        thread.start()
        thread.join()


class Echo(torch.nn.Module):
    def forward(self, text: str) -> int:
        if not text:
            raise ValueError(secret("forward"))
        return len(text)
