"""Transformers: times pipelines, `generate`, tokenizers and the loading of models.

- In a batch of a pipeline, only the first input waits for the model. The time of each other input counts as `postprocess`.
- `transformers serve` has one thread per model. The thread processes one request at a time. The wait of other requests counts as `queue`.
- Stagelens does not read texts, images or token ids, so it cannot recognize padding. In a batch, each row gets the token
  count of the longest row.
"""
# Each pipeline, also a custom one, has its own `preprocess` and `postprocess`; only `forward` is common. So the callers of
# these methods are patched. transformers loads its own modules lazily; each is patched on its import.

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Iterable, Mapping
from contextvars import Token
from types import MappingProxyType, ModuleType
from typing import Any

from ...core.names import BY_GENERATE
from ...core.stages import LOAD_FIRST_RUN, LOAD_READ
from .. import scripts
from ..instrumentor import Hook, Instrumentor, Probed, Target, TimedCall, log_failure, timed_call
from ..loads import loads, shapes_of
from ..probes import Probe
from ..recorder import end
from ..records import OPEN, STATE, Marks, clock, current, has_capacity
from .executors import as_job
from .onnxruntime import model_name
from .torch.models import known_models, register_model, thread_state

# Prefix of a repository folder in the cache of the hub: models--meta-llama--Llama-3.1-8B.
CACHED = "models--"
# Names without information: the fallback of `model_name`, and those of relative paths.
NAMELESS = ("model", "", ".", "..")
# Modules and classes that define `from_pretrained`.
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
PROCESSORS = ("ProcessorMixin", "ImageProcessingMixin", "FeatureExtractionMixin")
PREPARING = ("__call__", "preprocess")
ENCODERS = ("__call__", "encode", "encode_plus", "batch_encode_plus", "apply_chat_template")
DECODERS = ("decode", "batch_decode")
_GENERATION = "transformers.generation.utils:GenerationMixin"


def suppress() -> Token[Marks | None]:
    """Hide the running request from this context until the returned token is passed to `recorder.end`."""
    return current.set(None)


class _Alone(TimedCall):
    """A call that is one stage: those inside are not recorded."""

    __slots__ = ("_hidden",)

    def __init__(self, marks: Marks, stage: str) -> None:
        super().__init__(marks, stage)
        self._hidden: Token[Marks | None] | None = suppress()

    def end(self) -> None:
        hidden, self._hidden = self._hidden, None
        if hidden is not None:
            end(hidden)
        super().end()


def _begin(stage: str) -> _Alone | None:
    marks = None if thread_state.inside else current.get()
    return None if marks is None else _Alone(marks, stage)


def wrap_stage(stage: str) -> Probed:
    """Return what records every call of a plain function as one *stage*; stages inside the call are not recorded.

    So loading a model is one `load` without the waits of its tensors for a thread, and a recursive tokenizer call counts
    once. Calls inside a module or inside `generate`, whose streamer decodes every token, are not recorded.
    """
    return Probed.until_end(functools.partial(_begin, stage))


class _Load:
    __slots__ = ("_stage", "_token")

    def __init__(self, *args: Any) -> None:
        self._token = loads.begin(_requested_model(args), reading=True)
        self._stage = _begin("load")

    def end(self) -> None:
        if self._stage is not None:
            self._stage.end()
        loads.end(self._token, LOAD_READ.key)


# For a function that loads from a repository or folder: `load`, also recorded as a load outside of requests.
wrap_load = Probed.until_end(_Load, parameters=2)


def _requested_model(args: Any) -> str:
    try:
        return next((repository_name(arg) for arg in args[:2] if isinstance(arg, str)), "")
    except Exception:
        log_failure("naming a load from a repository")
        return ""


def describe(model: Any) -> tuple[str, str, int, str, str, int]:
    return "@model", name_of(model), 0, "@device", str(getattr(model, "device", "")).partition(":")[0], 0


def name_of(model: Any) -> str:
    """Return the last part of the repository or folder of *model*, without parent folders; else its class name."""
    # There is no public name for the path.
    path = getattr(getattr(model, "config", None), "_name_or_path", "")
    return (path and repository_name(path)) or type(model).__name__


@functools.lru_cache(maxsize=256)
def repository_name(path: str) -> str:
    """Return the last meaningful part of *path*, "" for none.

    >>> repository_name("meta-llama/Llama-3.1-8B")
    'Llama-3.1-8B'
    >>> repository_name("/home/me/.cache/huggingface/hub/models--org--tiny/snapshots/0123456789012345678901234567890123456789")
    'tiny'
    """
    name = model_name(os.path.join(path.rstrip("/"), "model"))  # noqa: PTH118 - importing pathlib would cost the host time
    if name.startswith(CACHED):
        name = name.rpartition("--")[2]
    return "" if name in NAMELESS else name


class _ItemState(threading.local):
    """State of a thread: its current item, and start and end of the last `forward` by `clock` (0 before it)."""

    inside_item = inside_forward = False
    started = ended = 0


_item_state = _ItemState()


def wrap_item(original: Any) -> Any:
    """Wrap a method that processes one item completely: `run_single` of a pipeline, `__next__` of its outermost iterator."""

    def call(self: Any, *args: Any, **options: Any) -> Any:
        marks = current.get()
        if marks is None or marks[STATE] != OPEN or _item_state.inside_item:
            return original(self, *args, **options)
        _item_state.inside_item = True
        _item_state.started = _item_state.ended = 0
        # Stage of an item without a `forward`: `preprocess` if it failed before, `postprocess` if the batch was already done.
        alone = "preprocess"
        started = clock()
        try:
            result = original(self, *args, **options)
            alone = "postprocess"
            return result  # noqa: TRY300 - the stage is known only here
        except StopIteration:
            alone = ""
            raise
        finally:
            _item_state.inside_item = False
            _mark_item(marks, started, alone)

    return call


def wrap_pipeline(original: Any) -> Any:
    """Wrap `Pipeline.__call__`, and the step of its iterator over a dataset, which are requests of plain scripts."""

    def call(self: Any, *args: Any, **options: Any) -> Any:
        scope = scripts.begin() if scripts.on and current.get() is None else None
        if scope is None:
            return original(self, *args, **options)
        return scripts.call(scope, type(self).__name__, original, self, *args, **options)

    return call


def wrap_forward(original: Any) -> Any:
    """Wrap `Pipeline.forward`, which moves the tensors to the device and back around the pipeline's own `_forward`."""

    def forward(self: Any, model_inputs: Any, **options: Any) -> Any:
        marks = current.get()
        if marks is None or marks[STATE] != OPEN or _item_state.inside_forward:
            return original(self, model_inputs, **options)
        _item_state.inside_forward = True
        started = _item_state.started = clock()
        try:
            return original(self, model_inputs, **options)
        finally:
            ended = _item_state.ended = clock()
            _item_state.inside_forward = False
            if has_capacity(marks):
                marks.extend(("forward", started, ended))
                _describe_pipeline(marks, self)

    return forward


def _count_inputs(_pipeline: Any, inputs: Any) -> None:
    marks = current.get()
    if marks is not None and marks[STATE] == OPEN and isinstance(inputs, list) and has_capacity(marks):
        marks.extend(("@batch", len(inputs), 0))


def _mark_item(marks: Marks, started: int, alone: str) -> None:
    if not has_capacity(marks):
        return
    if _item_state.ended:
        marks.extend(("preprocess", started, _item_state.started, "postprocess", _item_state.ended, clock()))
    elif alone:
        marks.extend((alone, started, clock()))


def _describe_pipeline(marks: Marks, pipeline: Any) -> None:
    try:
        marks.extend(describe(pipeline.model))
    except Exception:
        log_failure("naming the model of a pipeline")


# Every decoding loop of the library (greedy, sampling, beams, assisted) calls `_has_unfinished_sequences` once before its first
# step and once after each step. The steps are counted there, without changes of the user's arguments and without cost
# per layer. The library has waited for the device when it makes this call, so the times hold on a GPU too. Modules, copies and
# tokenizers inside belong to it, which keeps the list of marks short even for a long response; compiling inside is still `load`,
# and so is the first `generate` of a model up to its first token.
#
# A `custom_generate` loop that never makes this call is `decode` as a whole, without a first token. The steps of an assistant
# belong to the step of the main model. Tokens are counted by shapes, including padding: no value is read.


class GenerateCall:
    __slots__ = ("first", "gap", "last", "prompt", "steps")

    def __init__(self) -> None:
        # Number of finished steps; the call before the first step raises it from -1 to 0.
        self.steps = -1
        self.first = self.last = self.gap = 0
        # Length of the prompt. [tokens per row]
        self.prompt = -1

    def step(self) -> None:
        self.steps += 1
        if self.steps < 1:
            return
        now = clock()
        if self.steps == 1:
            self.first = now
        elif now - self.last > self.gap:
            self.gap = now - self.last
        self.last = now


class _GenerateState(threading.local):
    run: GenerateCall | None = None


_generate_state = _GenerateState()


def wrap_generate(original: Any) -> Any:
    def generate(self: Any, *args: Any, **options: Any) -> Any:
        marks, outer = current.get(), _generate_state.run
        if outer is not None:
            return _generate_inside(original, outer, self, args, options)
        scope = scripts.begin() if marks is None and scripts.on else None
        if scope is not None:
            return scripts.call(scope, name_of(self), generate, self, *args, **options)
        if marks is None or marks[STATE] != OPEN:
            return original(self, *args, **options)
        run = _generate_state.run = GenerateCall()
        outside, thread_state.inside = thread_state.inside, True
        result = None
        started = clock()
        try:
            result = original(self, *args, **options)
            return result
        finally:
            ended = clock()
            _generate_state.run = None
            thread_state.inside = outside
            if has_capacity(marks):
                try:
                    stage = _first_stage(self, result)
                    _mark_generate(marks, run, stage, started, ended)
                    if stage == "load":
                        shape = shapes_of([*args, *options.values()])
                        loads.note(LOAD_FIRST_RUN.key, describe(self)[1], shape, started, run.first or ended)
                    _describe_generate(marks, self, args, options)
                    _count_tokens(marks, run, options, result)
                except Exception:
                    log_failure("counting the tokens of generate")

    return generate


def _running_generate() -> GenerateCall | None:
    return _generate_state.run


def _stepped(run: GenerateCall | None, _: object) -> None:
    # The result may be on the device: the step ends when it arrives.
    if run is not None:
        run.step()


def _note_prompt(_model: Any, _config: Any, input_ids_length: Any) -> None:
    if _generate_state.run is not None:
        _generate_state.run.prompt = input_ids_length


def _generate_inside(original: Any, run: GenerateCall, model: Any, args: Any, options: Any) -> Any:
    """Run a nested `generate`: that of an assistant model, or one to which the outer call delegates completely."""
    if run.steps < 0:
        return original(model, *args, **options)
    _generate_state.run = GenerateCall()
    try:
        return original(model, *args, **options)
    finally:
        _generate_state.run = run


def _first_stage(model: Any, result: Any) -> str:
    """Return the stage up to the first token: `load` for the first call of a model, which warms it up, else `prefill`."""
    if not hasattr(model, "_parameters"):
        # A model of another engine with the same interface.
        return "prefill"
    known_model = known_models.get(id(model)) or register_model(model)
    if known_model.cold <= 0:
        return "prefill"
    if result is not None:
        known_model.cold -= 1
    return "load"


def _mark_generate(marks: Marks, run: GenerateCall, stage: str, started: int, ended: int) -> None:
    if run.steps < 0 <= run.prompt:
        marks.extend(("decode", started, ended))
    elif run.steps < 2:  # noqa: PLR2004 - one token only, or an exception
        marks.extend((stage, started, ended))
    else:
        marks.extend((stage, started, run.first, "decode", run.first, ended))
    if run.first:
        marks.extend(("@first_token", run.first, BY_GENERATE))


def _describe_generate(marks: Marks, model: Any, args: Any, options: Any) -> None:
    marks.extend(describe(model))
    prompt = _prompt_shape(args, options)
    if prompt is not None:
        rows, length = prompt
        marks.extend(("@batch", rows, 0, "@tokens_in", rows * length, 0))


def _count_tokens(marks: Marks, run: GenerateCall, options: Any, result: Any) -> None:
    if run.gap and options.get("streamer") is not None:
        marks.extend(("@gap", run.gap, 0))
    sequences = getattr(result, "sequences", result)
    # A custom loop may return any object.
    if run.steps < 1 or run.prompt < 0 or len(getattr(sequences, "shape", ())) != 2:  # noqa: PLR2004 - a matrix
        return
    rows, length = sequences.shape
    new = length - run.prompt
    marks.extend(("@tokens_out", rows * new, 0))
    if new > 1 and run.last > run.first:
        marks.extend(("@per_token", run.last - run.first, new - 1))


def _prompt_shape(args: Any, options: Any) -> tuple[int, int] | None:
    """Return the number of rows and the length of the prompt; None for audio and images, which have no tokens."""
    ids = args[0] if args else options.get("inputs")
    if ids is None:
        ids = options.get("input_ids")
    if ids is not None:
        # Speech is also a matrix, but of floating-point numbers.
        return tuple(ids.shape) if len(ids.shape) == 2 and not ids.is_floating_point() else None  # noqa: PLR2004 - a matrix
    embeddings = options.get("inputs_embeds")
    return None if embeddings is None else tuple(embeddings.shape[:2])


class TransformersInstrumentor(Instrumentor):
    library = "transformers"
    title = "Transformers"
    stages = {
        "queue": "the wait for the thread of a model in `transformers serve`",
        "preprocess": "the time in a pipeline before the last call of the model; calls of an image processor, video processor, "
        "feature extractor or processor",
        "tokenize": "calls of `__call__`, `encode` and `apply_chat_template` of a tokenizer",
        "forward": "the time of the model in a pipeline, including the copies to and from its device",
        "prefill": "the time in `generate` until the first new token",
        "decode": "the time in `generate` after the first new token",
        "postprocess": "the time in a pipeline after the last call of the model; calls of `decode` and `batch_decode` of a tokenizer, "
        "and of `post_process_…` of a processor",
        "load": "calls of `from_pretrained` of models, tokenizers, processors and configurations; the creation of a "
        "pipeline; the first `generate` of a model until its first token",
    }
    facts = ("model", "device", "batch", "first_token", "tokens_in", "tokens_out", "per_token", "gap")
    not_timed = (
        "continuous batching (`generate_batch`, `serve --continuous-batching`), because several requests share each step",
        "`prefill` and `decode` of a decoding loop outside `GenerationMixin`. Each step of the loop counts as a separate `forward`.",
        "the first token of a `custom_generate` loop that never calls `_has_unfinished_sequences`. The whole time of this loop counts as `decode`.",
        "streamers and logits processors inside `generate`. Their time counts as `prefill` and `decode`.",
    )
    tested = {"transformers": "5.23.0"}

    def targets(self) -> Iterable[Target]:
        return (
            (_GENERATION, Probed(Probe(_running_generate, _stepped)), "_has_unfinished_sequences"),
            (_GENERATION, Probed(Probe(_note_prompt, parameters=3)), "_validate_generated_length"),
            (_GENERATION, wrap_generate, "generate"),
            ("transformers.pipelines.base:Pipeline", wrap_load, "__init__"),
            ("transformers.pipelines.base:Pipeline", wrap_pipeline, "__call__"),
            ("transformers.pipelines.base:Pipeline", wrap_forward, "forward"),
            ("transformers.pipelines.base:Pipeline ChunkPipeline", wrap_item, "run_single"),
            (
                "transformers.pipelines.base:Pipeline ChunkPipeline",
                Probed(Probe(_count_inputs, parameters=2)),
                "get_iterator",
            ),
            (
                "transformers.pipelines.pt_utils:PipelineIterator",
                lambda original: wrap_pipeline(wrap_item(original)),
                "__next__",
            ),
            ("transformers.cli.serving.utils:InferenceThread", _submit, "submit async_submit"),
        )

    def hooks(self) -> Mapping[str, Hook]:
        return {
            **super().hooks(),
            "transformers.models.auto.modeling_auto": self._auto_models,
            "transformers.tokenization_mistral_common": self._mistral,
            **dict.fromkeys(LOADERS, self._loaders),
            "transformers.tokenization_utils_base": self._tokenizers,
        }

    def _tokenizers(self, module: ModuleType) -> None:
        self._loaders(module)
        self._tokenizer(module.PreTrainedTokenizerBase)

    def _mistral(self, module: ModuleType) -> None:
        # The tokenizers of mistral_common override these methods.
        for owner in vars(module).values():
            if isinstance(owner, type) and owner.__module__ == module.__name__:
                self.replace(owner, "from_pretrained", wrap_load)
                self._tokenizer(owner)

    def _tokenizer(self, owner: type) -> None:
        for name in ENCODERS:
            self.replace(owner, name, wrap_stage("tokenize"))
        for name in DECODERS:
            self.replace(owner, name, wrap_stage("postprocess"))

    def _loaders(self, module: ModuleType) -> None:
        for name in LOADERS[module.__name__]:
            owner = getattr(module, name, None)
            if owner is not None:
                self.replace(owner, "from_pretrained", wrap_load)
                if name in PROCESSORS:
                    self.replace(owner, "__init__", Probed(Probe(self._created, parameters=1)))

    def _created(self, processor: Any) -> None:
        """Patch the class of a *processor*: many have a `__call__` of their own."""
        try:
            for owner in type(processor).__mro__:
                for name in [name for name in vars(owner) if name in PREPARING or name.startswith("post_process")]:
                    self.replace(owner, name, timed_call("preprocess" if name in PREPARING else "postprocess"))
        except Exception:
            log_failure("instrumenting a processor of transformers")

    def _auto_models(self, module: ModuleType) -> None:
        # Each class has its own copy of the method.
        for owner in list(vars(module).values()):
            if isinstance(owner, type) and owner.__module__ == module.__name__:
                self.replace(owner, "from_pretrained", wrap_load)


def _submit(original: Any) -> Any:
    def submit(self: Any, fn: Any, *args: Any, **options: Any) -> Any:
        return original(self, as_job(fn), *args, **options)

    return submit
