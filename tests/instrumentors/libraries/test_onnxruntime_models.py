"""ONNX Runtime and PyTorch in real applications that bring their own models: rapidocr and silero-vad."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import Context
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import rapidocr_onnxruntime
import silero_vad
import torch
from PIL import Image, ImageDraw, ImageFont

from stagelens.instrumentors import recorder
from stagelens.instrumentors.libraries.onnxruntime import OnnxRuntimeInstrumentor
from stagelens.instrumentors.libraries.torch import TorchInstrumentor
from tests.instrumentors.libraries.drivers import instrumenting

if TYPE_CHECKING:
    from conftest import Finished

INSTRUMENTOR = OnnxRuntimeInstrumentor
pytestmark = [pytest.mark.stacks, pytest.mark.usefixtures("instrumented")]

DETECT, TURN, READ = "ch_PP-OCRv4_det_infer", "ch_ppocr_mobile_v2.0_cls_infer", "ch_PP-OCRv4_rec_infer"


@contextmanager
def request() -> Generator[list[Any]]:
    """Run what is inside as one request, and give its marks."""
    opened = recorder.begin()
    assert opened is not None
    marks, token = opened
    yield marks
    recorder.end(token)


def test_rapidocr_times_match_for_its_three_models(finished: Finished) -> None:
    read = rapidocr_onnxruntime.RapidOCR()
    image = text("Hello World", "stage 42")
    rounds = [_read(read, image) for _ in range(3)]
    # What the machine does in between counts as theirs.
    while _share(rounds) <= 0.6 and len(rounds) < 12:
        rounds.append(_read(read, image))

    assert list(finished) == []
    for number, (lines, _, stages, _) in enumerate(rounds):
        assert lines == ["HelloWorld", "stage 42"]
        assert stages == {(name, "forward" if number else "load"): 1 for name in (DETECT, TURN, READ)}
    for _, reported, _, ours in rounds:
        # Its clock is the wall clock, which may be set.
        assert all(ours[name] <= seconds + 0.001 for name, seconds in reported.items())
    assert _share(rounds) > 0.6


Round = tuple[list[str], dict[str, float], Counter[tuple[str, str]], Counter[str]]


def _share(rounds: list[Round]) -> float:
    """Return how much of its own times is ours, at most."""
    return max(sum(ours.values()) / sum(reported.values()) for _, reported, _, ours in rounds)


def _read(read: Callable[[Any], Any], image: Any) -> Round:
    """Return the lines of *image*, the time of each model as rapidocr has it, which stages each had, and our time of it."""
    with request() as marks:
        lines, elapsed = read(image)
    stages: Counter[tuple[str, str]] = Counter()
    seconds: Counter[str] = Counter()
    triples = list(zip(marks[3::3], marks[4::3], marks[5::3], strict=True))
    for (key, started, ended), (fact, model, _) in itertools.pairwise(triples):
        if not key.startswith("@"):
            assert fact == "@model"
            stages[model, key] += 1
            seconds[model] += (ended - started) / 1e9
    return [line for _, line, _ in lines], dict(zip((DETECT, TURN, READ), elapsed, strict=True)), stages, seconds


def text(*lines: str) -> Any:
    """Return an image of black lines on white; shape (60 per line, 320, 3)."""
    image = Image.new("RGB", (320, 60 * len(lines)), "white")
    for number, line in enumerate(lines):
        ImageDraw.Draw(image).text((10, 10 + 50 * number), line, fill="black", font=ImageFont.load_default(28))
    return np.asarray(image)


# Torch calls TorchScript deprecated, and the package warns of its number of threads.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("onnx", "cold", "model"), [(True, 1, "silero_vad"), (False, 2, "VADRNNJITMerge")], ids=["onnx", "torch"]
)
def test_silero_processes_a_second_in_31_chunks(in_a_request: Finished, onnx: bool, cold: int, model: str) -> None:
    threads = torch.get_num_threads()
    listen: Any = Context().run(silero_vad.load_silero_vad, onnx=onnx)
    torch.set_num_threads(threads)
    with instrumenting(TorchInstrumentor()):
        for chunk in torch.zeros(31, 512):
            listen(chunk, 16000)

    assert Counter(in_a_request.stages()) == {"load": cold, "forward": 31 - cold}
    assert {value for key, value, _ in in_a_request.marks() if key == "@model"} == {model}
