"""CTranslate2: times translation, generation, encoding and Whisper as `forward`, and the loading of models.

- The model name is the name of the folder.
- faster-whisper uses CTranslate2, so Stagelens times it too.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from ..instrumentor import Hook, Instrumentor, log_failure, timed, timed_call
from .model_common import class_name, folder_name, model_call

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
        """Return the patch functions by module."""
        return {"ctranslate2._ext": self._extension}

    def _extension(self, module: ModuleType) -> None:
        for kind, names in CALLS.items():
            owner = getattr(module, kind, None)
            if owner is not None:
                self.replace(owner, "__init__", _creating)
                for name in names:
                    self.replace(owner, name, _call)
        for kind in RESULTS:
            owner = getattr(module, kind, None)
            if owner is not None:
                self.replace(owner, "result", timed_call("forward"))


# Names of models, which do not know their folders.
_names: WeakKeyDictionary[Any, str] = WeakKeyDictionary()


def _creating(original: Any) -> Any:
    load = timed("load")(original)

    def __init__(self: Any, *args: Any, **options: Any) -> None:  # noqa: N807 - shown in tracebacks
        load(self, *args, **options)
        try:
            _names[self] = folder_name(args[0] if args else options.get("model_path"))
        except Exception:
            log_failure("naming a model of CTranslate2")

    return __init__


def _call(original: Any) -> Any:
    run = model_call(_name)(original)

    def call(self: Any, *args: Any, **options: Any) -> Any:
        # An asynchronous call only starts the work.
        return (original if options.get("asynchronous") else run)(self, *args, **options)

    return call


def _name(model: Any) -> str:
    return _names.get(model) or class_name(model)
