"""A Gradio app with a function of each kind. The argument is the port."""

# pyright: reportMissingImports=false, reportUnknownMemberType=false
from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import gradio


def double(number: float) -> float:
    """Double it, and take a while; fail where it is negative."""
    time.sleep(0.005)
    if number < 0:
        raise ValueError(number)
    return number * 2


async def triple(number: float) -> float:
    time.sleep(0.005)  # noqa: ASYNC251 - computes, as models do
    return number * 3


def count(number: float) -> Iterator[float]:
    for index in range(int(number)):
        time.sleep(0.005)
        yield index + 1


def halve(numbers: list[float]) -> list[list[float]]:
    time.sleep(0.005)
    return [[number / 2 for number in numbers]]


with gradio.Blocks() as app:
    number, result = gradio.Number(), gradio.Number()
    for function in (double, triple, count):
        gradio.Button().click(function, number, result, api_name=function.__name__)
    gradio.Button().click(halve, number, result, api_name="halve", batch=True, max_batch_size=4)

if __name__ == "__main__":
    app.launch(server_name="127.0.0.1", server_port=int(sys.argv[1]))
