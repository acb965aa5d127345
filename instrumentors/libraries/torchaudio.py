"""torchaudio: times transforms, resampling, features, and decoding and encoding of audio.

- Transforms are modules. The [PyTorch](torch.md) module times them.
- A call below 20 µs is not recorded. `torch.compile` and `torch.jit.script` work unchanged.
- Stagelens does not read samples or names of files.
"""

from __future__ import annotations

from types import MappingProxyType

from .torch.models import OutsideInstrumentor


class TorchaudioInstrumentor(OutsideInstrumentor):
    """Instrumentor of the functions of torchaudio."""

    library = "torchaudio"
    title = "torchaudio"
    stages = MappingProxyType(
        {
            "preprocess": "`load`, `save`, transforms, `resample`, `spectrogram`, `pitch_shift`, `loudness` and similar functions, and `fbank` and `mfcc` of `compliance.kaldi`"
        }
    )
    not_timed = ("the other functions of `torchaudio.functional`, such as filters",)
    tested = MappingProxyType({"torchaudio": "2.11.0"})
    calls = MappingProxyType(
        {
            "torchaudio": {"preprocess": ("load", "save")},
            "torchaudio.functional.functional": {
                "preprocess": (
                    *("resample", "speed", "pitch_shift", "loudness", "add_noise"),
                    *("spectrogram", "inverse_spectrogram", "griffinlim", "phase_vocoder"),
                )
            },
            "torchaudio.compliance.kaldi": {"preprocess": ("fbank", "mfcc", "spectrogram")},
        }
    )
