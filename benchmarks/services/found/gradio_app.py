"""A Gradio app that labels a text with torch."""

from __future__ import annotations

import gradio as gr
import torch
from torch import nn

torch.set_num_threads(1)
LABELS = ("good", "bad", "neither")
embedding = nn.EmbeddingBag(256, 2048)
model = nn.Sequential(nn.Linear(2048, 4096), nn.ReLU(), nn.Linear(4096, len(LABELS))).eval()


def classify(text: str) -> dict[str, float]:
    """Return the probability of each label."""
    with torch.inference_mode():
        scores = model(embedding(torch.tensor([list(text.encode())]))).softmax(dim=1)[0]
    return dict(zip(LABELS, scores.tolist(), strict=True))


if __name__ == "__main__":
    gr.Interface(fn=classify, inputs="text", outputs="label").launch()
