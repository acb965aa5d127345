"""A small net of PyTorch behind FastAPI. One picture in twenty is large: what does it do to p99?"""

from __future__ import annotations

import torch
from fastapi import FastAPI

SIDE = 64
layers = torch.nn.Conv2d(3, 16, 3), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten()
model = torch.nn.Sequential(*layers, torch.nn.Linear(256, 10)).eval()
model(torch.zeros(1, 3, SIDE, SIDE))  # warm it up before the first request

app = FastAPI()


def prepare(number: int) -> torch.Tensor:
    """Make a picture, and scale it to what the model takes."""
    side = 1500 if number % 20 == 0 else 200
    return torch.nn.functional.interpolate(torch.rand(1, 3, side, side), size=SIDE, mode="bicubic")


@app.get("/pictures/{number}")
def classify(number: int) -> dict[str, int]:
    """Return the kind, one of ten, of picture *number*; FastAPI runs a plain `def` in a thread."""
    with torch.inference_mode():
        scores = model(prepare(number))
    return {"kind": int(scores.argmax())}


@app.get("/async/{number}")
async def classify_in_loop(number: int) -> dict[str, int]:
    """Do the same in the event loop: without a wait for a thread, but all other requests wait meanwhile."""
    return classify(number)
