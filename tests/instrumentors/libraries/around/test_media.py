"""torchvision, torchaudio and librosa: the result is unchanged, and a call is one stage."""

from __future__ import annotations

import importlib
import wave
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from stagelens.instrumentors.bootstrap import LIBRARIES
from stagelens.instrumentors.records import current
from stagelens.instrumentors.request_marks import read_marks
from tests.instrumentors.libraries.drivers import instrumenting

pytestmark = pytest.mark.stacks
BESIDE = ("librosa", "torch", "torchaudio", "torchvision")
SILENCE = torch.zeros(1, 16_000)


@pytest.fixture(autouse=True)
def instrumented_libraries(around: Path) -> Generator[None]:
    assert around.exists()
    with instrumenting(*(library.load()() for library in LIBRARIES if library.trigger in BESIDE)):
        yield


def test_transforms_preprocess(stages: Callable[[], list[str]]) -> None:
    """Of both versions, alone and in a container: they are no model, and what they call is a part of them."""
    first: Any = importlib.import_module("torchvision.transforms")
    second: Any = importlib.import_module("torchvision.transforms.v2")
    pixels = torch.zeros(3, 64, 64, dtype=torch.uint8)

    assert first.Compose([first.Resize(32), first.ToTensor()])(Image.new("RGB", (64, 64))).shape == (3, 32, 32)
    assert second.Compose([second.Resize(32), second.CenterCrop(16)])(pixels).shape == (3, 16, 16)
    assert torch.nn.Sequential(first.Resize(32), first.CenterCrop(16))(pixels).shape == (3, 16, 16)
    assert stages() == ["preprocess"] * 3
    marks = current.get()
    assert marks is not None
    assert "@model" not in read_marks(marks).facts


def test_a_model_beside_transforms_is_a_forward(stages: Callable[[], list[str]]) -> None:
    transforms: Any = importlib.import_module("torchaudio.transforms")
    model = torch.nn.Sequential(transforms.Spectrogram(n_fft=64), torch.nn.Linear(501, 2))
    for _ in range(2):
        model(SILENCE)

    assert stages() == ["load", "forward"]


def test_decoding_an_image_preprocesses(stages: Callable[[], list[str]]) -> None:
    vision: Any = importlib.import_module("torchvision.io")
    with pytest.raises(RuntimeError):
        vision.decode_image(torch.zeros(8, dtype=torch.uint8))

    assert stages() == ["preprocess"]


def test_torchaudio_preprocesses(stages: Callable[[], list[str]]) -> None:
    audio: Any = importlib.import_module("torchaudio")
    kaldi: Any = importlib.import_module("torchaudio.compliance.kaldi")

    assert audio.transforms.MelSpectrogram(16_000, n_mels=8)(SILENCE).shape == (1, 8, 81)
    assert audio.functional.resample(SILENCE, 16_000, 8_000).shape == (1, 8_000)
    assert kaldi.fbank(SILENCE).shape == (98, 23)
    with pytest.raises(ImportError, match="TorchCodec"):
        audio.load("missing.wav")
    assert stages() == ["preprocess"] * 4


# TorchScript is deprecated.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_compilers_see_the_originals(stages: Callable[[], list[str]]) -> None:
    audio: Any = importlib.import_module("torchaudio")
    vision: Any = importlib.import_module("torchvision.transforms")

    def resample(samples: torch.Tensor) -> torch.Tensor:
        return audio.functional.resample(samples, 16_000, 8_000)

    def crop(samples: torch.Tensor) -> torch.Tensor:
        return vision.Compose([vision.CenterCrop(8)])(samples)

    scripted: Any = torch.jit.script(audio.functional.resample)
    assert scripted(SILENCE, 16_000, 8_000).shape == (1, 8_000)
    assert torch.jit.script(vision.Resize([32]))(torch.zeros(3, 64, 64)).shape == (3, 32, 32)
    assert torch.compile(resample, backend="eager", fullgraph=True)(SILENCE).shape == (1, 8_000)
    assert torch.compile(crop, backend="eager", fullgraph=True)(torch.zeros(3, 64, 64)).shape == (3, 8, 8)
    transform: Any = torch.compile(audio.transforms.Resample(16_000, 8_000), backend="eager", fullgraph=True)
    transform(SILENCE)
    before = len(stages())
    transform(SILENCE)
    assert stages()[before:] == ["preprocess"]


# It imports modules that Python 3.13 does not have.
@pytest.mark.filterwarnings("ignore:.*slated for removal:DeprecationWarning")
def uncompiled(*arguments: Any, **_options: Any) -> Any:
    """Decorate like Numba's decorators, and leave the function as it is in Python."""
    return arguments[0] if arguments and callable(arguments[0]) else lambda function: function


@pytest.mark.filterwarnings("ignore:.* is deprecated and slated for removal in Python 3.13:DeprecationWarning")
def test_librosa_preprocesses(stages: Callable[[], list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the names of the package; what they call is a part of them."""
    # Importing librosa compiles functions that nothing here calls, in 40 s of a CI run; none of them is patched.
    for name in ("guvectorize", "jit", "stencil", "vectorize"):
        monkeypatch.setattr(f"numba.{name}", uncompiled)
    librosa: Any = importlib.import_module("librosa")
    with wave.open(str(tmp_path / "a.wav"), "wb") as file:
        file.setparams((1, 2, 8_000, 0, "NONE", ""))
        file.writeframes(bytes(2 * 8_000))
    samples, rate = librosa.load(tmp_path / "a.wav", sr=4_000)

    assert (samples.shape, rate) == ((4_000,), 4_000)
    assert librosa.feature.mfcc(y=samples, sr=rate, n_mfcc=5, n_mels=8).shape[0] == 5
    assert np.abs(librosa.stft(samples)).max() == 0
    assert stages() == ["preprocess"] * 3
