"""FastAPI that embeds sentences with sentence-transformers: a small BERT with random weights."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from fastapi import FastAPI
from pydantic import BaseModel
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Pooling, Transformer
from transformers import BertConfig, BertModel, BertTokenizerFast

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"word{number}" for number in range(200)))


def make_model() -> SentenceTransformer:
    """Return a model that was never trained."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "vocab.txt").write_text("\n".join(WORDS))
        BertTokenizerFast(str(Path(folder, "vocab.txt"))).save_pretrained(folder)
        BertModel(BertConfig(vocab_size=len(WORDS), hidden_size=384, num_hidden_layers=6)).save_pretrained(folder)
        transformer = Transformer(folder, max_seq_length=128)
    return SentenceTransformer(modules=[transformer, Pooling(384)], device="cpu")


torch.set_num_threads(1)
model = make_model()
app = FastAPI()


class Texts(BaseModel):
    """What is to be embedded."""

    sentences: list[str]


@app.post("/embed")
def embed(texts: Texts) -> dict[str, list[list[float]]]:
    """Embed some sentences."""
    return {"embeddings": model.encode(texts.sentences).tolist()}
