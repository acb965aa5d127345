"""CTranslate2: times translation, generation, encoding and Whisper as `forward`, and the loading of models.

- The model name is the name of the folder.
- faster-whisper uses CTranslate2, so Stagelens times it too.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType, ModuleType
from typing import Any

from ..instrumentor import Hook, Instrumentor, timed_call
from .model_common import created_name, creation, model_call

CALLS = {
    "Translator": ("translate_batch", "score_batch", "translate_file", "score_file"),
    "Generator": ("generate_batch", "score_batch", "forward_batch"),
    "Encoder": ("forward_batch",),
    "Whisper": ("encode", "generate", "align", "detect_language"),
    "Wav2Vec2": ("encode",),
    "Wav2Vec2Bert": ("encode",),
}
RESULTS = ("AsyncTranslationResult", "AsyncGenerationResult", "AsyncScoringResult", "WhisperGenerationResultAsync")


class CTranslate2Instrumentor(Instrumentor):
    """Instrumentor of the classes of CTranslate2, which are written in C++."""

    library = "ctranslate2"
    title = "CTranslate2"
    stages = MappingProxyType(
        {
            "forward": "calls of `translate_batch`, `generate_batch`, `score_batch`, `forward_batch`, `translate_file` and "
            "`score_file`; of `encode`, `generate`, `align` and `detect_language` of Whisper and Wav2Vec2; with "
            "`asynchronous=True`, the wait in `result`; from 20 µs",
            "load": "the creation of a `Translator`, `Generator`, `Encoder` or model of speech",
        }
    )
    facts = ("model", "batch")
    not_timed = (
        "`generate_tokens`, which runs in a thread of its own",
        "calls with `asynchronous=True` in a plain script",
    )
    tested = MappingProxyType({"ctranslate2": "4.8.5"})

    def hooks(self) -> Mapping[str, Hook]:
        return {"ctranslate2._ext": self._extension}

    def _extension(self, module: ModuleType) -> None:
        for kind, names in CALLS.items():
            owner = getattr(module, kind, None)
            if owner is not None:
                self.replace(owner, "__init__", creation)
                for name in names:
                    self.replace(owner, name, _call)
        for kind in RESULTS:
            owner = getattr(module, kind, None)
            if owner is not None:
                self.replace(owner, "result", timed_call("forward"))


def _call(original: Any) -> Any:
    run = model_call(created_name)(original)

    def call(self: Any, *args: Any, **options: Any) -> Any:
        # An asynchronous call only starts the work.
        return (original if options.get("asynchronous") else run)(self, *args, **options)

    return call
