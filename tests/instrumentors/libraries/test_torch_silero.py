"""A real model: Silero's voice activity detector, TorchScript that is called once for each 32 ms of audio."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest
import torch
from silero_vad import get_speech_timestamps, load_silero_vad

from stagelens.core.partition import partition
from stagelens.instrumentors import recorder, records
from stagelens.instrumentors.libraries.torch import TorchInstrumentor

if TYPE_CHECKING:
    from conftest import Finished

INSTRUMENTOR = TorchInstrumentor
pytestmark = [
    pytest.mark.stacks,
    pytest.mark.usefixtures("instrumented"),
    # Torch calls TorchScript deprecated; the model is what it is.
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),
]

RATE = 16_000
CHUNK = 512


@pytest.fixture(scope="module")
def detector() -> Generator[Any]:
    """The model, from the package itself; it sets the number of threads of the process."""
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("warnings.warn", lambda *_, **__: None)
        yield load_silero_vad()
    torch.set_num_threads(threads)


def listen(detector: Any, seconds: float) -> tuple[list[Any], int, int]:
    """Look for speech in noise, in a request of its own; return its marks, start and end."""
    generator = torch.Generator().manual_seed(0)
    audio = torch.randn(int(seconds * RATE), generator=generator) / 10
    scope = recorder.begin()
    assert scope is not None
    marks, token = scope
    try:
        get_speech_timestamps(audio, detector, sampling_rate=RATE)
    finally:
        recorder.end(token)
    return marks, marks[1], records.clock()


def test_a_request_is_mostly_forward(finished: Finished, detector: Any) -> None:
    assert finished is not None
    cold, _, _ = listen(detector, 1)
    chunks = -(-RATE // CHUNK)
    shares: list[float] = []
    for _ in range(5):
        warm, start, end = listen(detector, 1)
        triples = zip(warm[::3], warm[1::3], warm[2::3], strict=True)
        intervals = [(key, t0, t1) for key, t0, t1 in triples if key[0] != "@"]
        shares.append(partition(intervals, start, end)["forward"] / (end - start))

        assert [key for key, _, _ in intervals] == ["forward"] * chunks
        assert warm[warm.index("@model") + 1] == "VADRNNJITMerge"
        assert warm[warm.index("@device") + 1] == "cpu"

    assert Counter(key for key in cold[::3] if key[0] != "@") == {"load": 2, "forward": chunks - 2}
    # What the machine does in between may be in one of them.
    assert max(shares) > 0.5


def test_ten_seconds_fit_into_one_request(detector: Any) -> None:
    marks, _, _ = listen(detector, 10)

    assert len([key for key in marks[::3] if key in {"forward", "load"}]) == 313
    assert len(marks) < records.MAX_MARKS
