"""Sentence Transformers: times the work of `encode` and `predict` before and after the model.

- The [PyTorch](torch.md) or [ONNX Runtime](onnxruntime.md) module times the model. The [Transformers](transformers.md) module times the tokenizer.
- Stagelens does not read the sentences.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from .. import scripts
from ..instrumentor import Instrumentor, Target, log_failure
from ..records import OPEN, STATE, Marks, clock, current, has_capacity
from . import transformers

# Modules of the classes: since version 5.4, and before it.
MODULES = (
    "sentence_transformers.base.model",
    "sentence_transformers.sentence_transformer.model",
    "sentence_transformers.sparse_encoder.model",
    "sentence_transformers.cross_encoder.model",
    "sentence_transformers.multi_vector_encoder.model",
    "sentence_transformers.SentenceTransformer",
    "sentence_transformers.sparse_encoder.SparseEncoder",
    "sentence_transformers.cross_encoder.CrossEncoder",
)
CLASSES = "BaseModel SentenceTransformer SparseEncoder CrossEncoder MultiVectorEncoder"


class SentenceTransformersInstrumentor(Instrumentor):
    library = "sentence_transformers"
    title = "Sentence Transformers"
    stages = {
        "preprocess": "the time until the first batch is ready, and the preparation of all later batches",
        "postprocess": "all other time after the first batch is ready, such as normalizing, truncating and stacking the output",
        "load": "the creation of a `SentenceTransformer`, `SparseEncoder`, `MultiVectorEncoder` or `CrossEncoder`",
    }
    facts = ("model", "device", "batch")
    not_timed = ("encoding in a pool of processes",)
    tested = {"sentence-transformers": "6.2.0"}

    def targets(self) -> Iterable[Target]:
        for module in MODULES:
            yield f"{module}:{CLASSES}", transformers.wrap_load, "__init__"
            yield f"{module}:{CLASSES}", _inference, "encode predict"
            yield f"{module}:{CLASSES}", _preparation, "preprocess tokenize"


class _Thread(threading.local):
    """State of a thread: whether it is inside `encode` or a preparation, and the end of the first preparation (0 before it)."""

    inside = preparing = False
    prepared = 0


_thread = _Thread()


def _inference(original: Any) -> Any:
    def call(self: Any, *args: Any, **options: Any) -> Any:
        marks = current.get()
        scope = scripts.begin() if marks is None and scripts.on else None
        if scope is not None:
            return scripts.call(scope, describe(self)[1], call, self, *args, **options)
        if marks is None or marks[STATE] != OPEN or _thread.inside or _is_elsewhere(options):
            return original(self, *args, **options)
        _thread.inside = True
        _thread.prepared = 0
        started = clock()
        try:
            return original(self, *args, **options)
        finally:
            _thread.inside = False
            if has_capacity(marks):
                prepared = _thread.prepared or started
                marks.extend(("preprocess", started, prepared, "postprocess", prepared, clock()))
                _describe(marks, self, args, options)

    return call


def _preparation(original: Any) -> Any:
    def call(*args: Any, **options: Any) -> Any:
        marks = current.get()
        if marks is None or _thread.preparing:
            return original(*args, **options)
        _thread.preparing = True
        started = clock()
        try:
            return original(*args, **options)
        finally:
            ended = clock()
            _thread.preparing = False
            _thread.prepared = _thread.prepared or ended
            if has_capacity(marks):
                marks.extend(("preprocess", started, ended))

    return call


def _is_elsewhere(options: dict[str, Any]) -> bool:
    return options.get("pool") is not None or isinstance(options.get("device"), list)


def _describe(marks: Marks, model: Any, args: Any, options: dict[str, Any]) -> None:
    try:
        marks.extend(describe(model))
        inputs = args[0] if args else options.get("inputs", options.get("sentences"))
        marks.extend(("@batch", _count(model, inputs), 0))
    except Exception:
        log_failure("naming a model of sentence_transformers")


def describe(model: Any) -> tuple[str, str, int, str, str, int]:
    inner = getattr(model, "transformers_model", None) or getattr(model, "model", None)
    return transformers.describe(model if inner is None else inner)


def _count(model: Any, inputs: Any) -> int:
    is_single = getattr(model, "is_singular_input", None)
    single = isinstance(inputs, str) if is_single is None else is_single(inputs)
    return 1 if single else len(inputs)
