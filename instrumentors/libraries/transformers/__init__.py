"""Transformers: pipelines, `generate`, tokenizers, and `load`.

Each pipeline, also one of the user's, has its own `preprocess` and `postprocess`; only `forward` is common. So the
callers of these methods are patched: the time of an item before the last `forward` is `preprocess`, and the time after
it is `postprocess`. In a batch the first item waits for the batch, and the others are only unrolled from it: they are
`postprocess`.

`transformers serve` has one thread per model, which generates for one request after the other: its stages belong to the
current request, and the others are in `queue`.

transformers loads its own modules lazily; each is patched when that happens, and none is loaded by us. Texts, images
and token ids are passed on unread.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from types import MappingProxyType, ModuleType
from typing import Any

from ...instrumentor import Hook, Instrumentor, log_failure
from ...records import MAX_MARKS, OPEN, Marks, clock, current
from ..executors import as_job
from . import generation
from .pretrained import describe, one_stage, timed_load


class _Thread(threading.local):
    """The item that this thread works on, and when its last `forward` began and ended, by `clock`; 0 before it."""

    inside_item = inside_forward = False
    begun = ended = 0


_thread = _Thread()


def wrap_item(original: Any) -> Any:
    """Wrap a method that takes one item all the way: `run_single` of a pipeline, `__next__` of its outermost iterator."""

    def call(self: Any, *args: Any, **options: Any) -> Any:
        marks = current.get()
        if marks is None or marks[0] != OPEN or _thread.inside_item:
            return original(self, *args, **options)
        _thread.inside_item = True
        _thread.begun = _thread.ended = 0
        # What follows if no forward comes: all was in vain before it, or all was done before the item.
        alone = "preprocess"
        begun = clock()
        try:
            result = original(self, *args, **options)
            alone = "postprocess"
            return result  # noqa: TRY300 - the stage is known only here
        except StopIteration:
            alone = ""
            raise
        finally:
            _thread.inside_item = False
            _mark(marks, begun, alone)

    return call


def wrap_forward(original: Any) -> Any:
    """Wrap `Pipeline.forward`, which takes the tensors to the device and back around the pipeline's own `_forward`."""

    def forward(self: Any, model_inputs: Any, **options: Any) -> Any:
        marks = current.get()
        if marks is None or marks[0] != OPEN or _thread.inside_forward:
            return original(self, model_inputs, **options)
        _thread.inside_forward = True
        begun = _thread.begun = clock()
        try:
            return original(self, model_inputs, **options)
        finally:
            ended = _thread.ended = clock()
            _thread.inside_forward = False
            if len(marks) < MAX_MARKS:
                marks.extend(("forward", begun, ended))
                _describe(marks, self)

    return forward


def wrap_get_iterator(original: Any) -> Any:
    """Wrap `Pipeline.get_iterator`, which is given a list for the items of a request."""

    def get_iterator(self: Any, inputs: Any, *args: Any, **options: Any) -> Any:
        marks = current.get()
        if marks is not None and marks[0] == OPEN and isinstance(inputs, list) and len(marks) < MAX_MARKS:
            marks.extend(("@batch", len(inputs), 0))
        return original(self, inputs, *args, **options)

    return get_iterator


def _mark(marks: Marks, begun: int, alone: str) -> None:
    if len(marks) >= MAX_MARKS:
        return
    if _thread.ended:
        marks.extend(("preprocess", begun, _thread.begun, "postprocess", _thread.ended, clock()))
    elif alone:
        marks.extend((alone, begun, clock()))


def _describe(marks: Marks, pipeline: Any) -> None:
    try:
        marks.extend(describe(pipeline.model))
    except Exception:
        log_failure("naming the model of a pipeline")


# Where `from_pretrained` is written: module, class.
LOADERS = MappingProxyType(
    {
        "transformers.configuration_utils": ("PreTrainedConfig", "PretrainedConfig"),
        "transformers.modeling_utils": ("PreTrainedModel",),
        "transformers.tokenization_utils_base": ("PreTrainedTokenizerBase",),
        "transformers.processing_utils": ("ProcessorMixin",),
        "transformers.image_processing_base": ("ImageProcessingMixin",),
        "transformers.feature_extraction_utils": ("FeatureExtractionMixin",),
        "transformers.models.auto.configuration_auto": ("AutoConfig",),
        "transformers.models.auto.tokenization_auto": ("AutoTokenizer",),
        "transformers.models.auto.processing_auto": ("AutoProcessor",),
        "transformers.models.auto.image_processing_auto": ("AutoImageProcessor",),
        "transformers.models.auto.feature_extraction_auto": ("AutoFeatureExtractor",),
    }
)
ENCODERS = ("__call__", "encode", "encode_plus", "batch_encode_plus", "apply_chat_template")
DECODERS = ("decode", "batch_decode")


class TransformersInstrumentor(Instrumentor):
    """`Pipeline`, `GenerationMixin`, `PreTrainedTokenizerBase` and every `from_pretrained`."""

    library = "transformers"
    title = "Transformers"
    stages = MappingProxyType(
        {
            "queue": "in `transformers serve`: the wait for the thread of a model",
            "preprocess": "of a pipeline: all before the model",
            "tokenize": "a tokenizer's `__call__`, `encode` and `apply_chat_template`",
            "forward": "of a pipeline: the model, with the way to its device and back",
            "prefill": "`generate` until the first new token is there",
            "decode": "`generate` after the first new token, with its streamer",
            "postprocess": "of a pipeline: all after the model; a tokenizer's `decode` and `batch_decode`",
            "load": "`from_pretrained` of models, tokenizers, processors and configurations, setting up a pipeline, and the "
            "first `generate` of a model up to its first token",
        }
    )
    facts = ("model", "device", "batch", "first_token", "tokens_in", "tokens_out", "per_token", "gap")
    not_timed = (
        "continuous batching (`generate_batch`, `serve --continuous-batching`), whose requests share their steps",
        "the steps of models with a decoding loop outside `GenerationMixin`: each is a `forward` of its own",
        "the first token of a `custom_generate` loop that never asks `_has_unfinished_sequences`: all of it is `decode`",
        "what a streamer or a logits processor does inside `generate`: it is part of `prefill` and `decode`",
        "image processors and feature extractors outside a pipeline: wrap them in a stage of your own",
        "padding is not told from tokens, for no value is read: rows that ended early count as long as the longest",
    )
    tested = MappingProxyType({"transformers": "5.23.0"})

    def hooks(self) -> Mapping[str, Hook]:
        """Return the patch functions by module."""
        hooks: dict[str, Hook] = {
            "transformers.generation.utils": self._generation,
            "transformers.pipelines.base": self._pipelines,
            "transformers.pipelines.pt_utils": self._iterators,
            "transformers.models.auto.modeling_auto": self._auto_models,
            "transformers.tokenization_mistral_common": self._mistral,
            "transformers.cli.serving.utils": self._serving,
        }
        for name in LOADERS:
            hooks[name] = self._loaders
        hooks["transformers.tokenization_utils_base"] = self._tokenizers
        return hooks

    def _generation(self, module: ModuleType) -> None:
        mixin = module.GenerationMixin
        self.replace(mixin, "_has_unfinished_sequences", generation.has_unfinished_sequences)
        self.replace(mixin, "_validate_generated_length", generation.validate_generated_length)
        self.replace(mixin, "generate", generation.generate)

    def _pipelines(self, module: ModuleType) -> None:
        self.replace(module.Pipeline, "__init__", timed_load)
        self.replace(module.Pipeline, "forward", wrap_forward)
        for owner in (module.Pipeline, module.ChunkPipeline):
            self.replace(owner, "run_single", wrap_item)
            self.replace(owner, "get_iterator", wrap_get_iterator)

    def _iterators(self, module: ModuleType) -> None:
        self.replace(module.PipelineIterator, "__next__", wrap_item)

    def _tokenizers(self, module: ModuleType) -> None:
        self._loaders(module)
        self._tokenizer(module.PreTrainedTokenizerBase)

    def _mistral(self, module: ModuleType) -> None:
        # The tokenizers of mistral_common, with methods of their own.
        for owner in vars(module).values():
            if isinstance(owner, type) and owner.__module__ == module.__name__:
                self.replace(owner, "from_pretrained", timed_load)
                self._tokenizer(owner)

    def _serving(self, module: ModuleType) -> None:
        for name in ("submit", "async_submit"):
            self.replace(module.InferenceThread, name, _submit)

    def _tokenizer(self, owner: type) -> None:
        for name in ENCODERS:
            self.replace(owner, name, one_stage("tokenize"))
        for name in DECODERS:
            self.replace(owner, name, one_stage("postprocess"))

    def _loaders(self, module: ModuleType) -> None:
        for name in LOADERS[module.__name__]:
            owner = getattr(module, name, None)
            if owner is not None:
                self.replace(owner, "from_pretrained", timed_load)

    def _auto_models(self, module: ModuleType) -> None:
        # Each of them is given a copy of the method, with its own text.
        for owner in list(vars(module).values()):
            if isinstance(owner, type) and owner.__module__ == module.__name__:
                self.replace(owner, "from_pretrained", timed_load)


def _submit(original: Any) -> Any:
    def submit(self: Any, fn: Any, *args: Any, **options: Any) -> Any:
        return original(self, as_job(fn), *args, **options)

    return submit
