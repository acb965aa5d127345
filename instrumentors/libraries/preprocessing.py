"""Libraries that prepare the inputs of models, of which only calls outside of models are timed: images, audio and text.

The docstring of a class is the text of its page in the documentation.
"""

from __future__ import annotations

from types import MappingProxyType

from .torch.models import OutsideInstrumentor

_IMAGE_FUNCTIONS = (
    "read_file read_image decode_image decode_jpeg decode_png decode_gif decode_webp decode_avif decode_heic "
    "write_file encode_jpeg encode_png write_jpeg write_png"
)


class TorchvisionInstrumentor(OutsideInstrumentor):
    """torchvision: times transforms, and decoding and encoding of images.

    - Transforms are modules, except some of version 1. The [PyTorch](torch.md) module times them.
    - A call below 20 µs is not recorded. `torch.compile` and `torch.jit.script` work unchanged.
    - Stagelens does not read pixels or names of files.
    """

    library = "torchvision"
    title = "torchvision"
    stages = MappingProxyType(
        {
            "preprocess": "transforms of versions 1 and 2, `Compose`, and the functions of `torchvision.io` that read, decode, encode or write an image"
        }
    )
    not_timed = ("`torchvision.transforms.functional` outside of a transform, and videos",)
    tested = MappingProxyType({"torchvision": "0.28.0"})
    calls = MappingProxyType(
        {
            "torchvision.transforms.transforms": {
                "preprocess": tuple(
                    f"{name}.__call__"
                    for name in ("Compose", "ToTensor", "PILToTensor", "ToPILImage", "RandomChoice", "RandomOrder")
                )
            },
            "torchvision.io.image": {"preprocess": _IMAGE_FUNCTIONS.split()},
        }
    )


class TorchaudioInstrumentor(OutsideInstrumentor):
    """torchaudio: times transforms, resampling, features, and decoding and encoding of audio.

    - Transforms are modules. The [PyTorch](torch.md) module times them.
    - A call below 20 µs is not recorded. `torch.compile` and `torch.jit.script` work unchanged.
    - Stagelens does not read samples or names of files.
    """

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


class TokenizersInstrumentor(OutsideInstrumentor):
    """Hugging Face Tokenizers: times the encoding and decoding of text.

    - The tokenizers of [Transformers](transformers.md) call these methods: together they are one stage. Calls inside a model or `generate` belong to it.
    - A call below 20 µs is not recorded.
    - Stagelens does not read texts or token ids.
    """

    library = "tokenizers"
    title = "Tokenizers"
    stages = MappingProxyType(
        {
            "tokenize": "`encode`, `encode_batch` and `encode_batch_fast` of a `Tokenizer`",
            "postprocess": "`decode` and `decode_batch` of a `Tokenizer`",
        }
    )
    not_timed = ("`async_encode` and the other methods of asyncio: they run in threads of Rust",)
    tested = MappingProxyType({"tokenizers": "0.23.3"})
    calls = MappingProxyType(
        {
            "tokenizers": {
                "tokenize": ("Tokenizer.encode", "Tokenizer.encode_batch", "Tokenizer.encode_batch_fast"),
                "postprocess": ("Tokenizer.decode", "Tokenizer.decode_batch"),
            }
        }
    )
