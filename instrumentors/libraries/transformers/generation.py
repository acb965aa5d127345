"""`generate` of transformers: `prefill` until the first new token, `decode` after it.

Every decoding loop of the library (greedy, sampling, beams, assisted) calls `_has_unfinished_sequences` once before its
first step and once after each step. Its steps are counted there: nothing is added to the arguments of the user, and
nothing is done per layer. The library has waited for the device when it makes this call, so the times hold on a GPU
too. Modules, copies and tokenizers inside belong to it, which keeps the list of marks short even for a long answer;
compiling inside is still `load`, and so is the first `generate` of a model up to its first token.

A `custom_generate` loop that never makes this call is `decode` as a whole, without a first token. The steps of an
assistant belong to the step that they help. Tokens are counted by shapes, padding included: no value is read.
"""

from __future__ import annotations

import threading
from typing import Any

from ....core.names import BY_GENERATE
from ....core.stages import LOAD_FIRST_RUN
from ...instrumentor import log_failure
from ...loads import loads, shapes_of
from ...records import MAX_MARKS, OPEN, Marks, clock, current
from ..torch.models import known_models, register_model, thread_state
from .pretrained import describe


class Run:
    """One call of `generate`: how far it is and when its steps ended, by `clock`."""

    __slots__ = ("first", "gap", "last", "prompt", "steps")

    def __init__(self) -> None:
        # How often the loop has asked whether to go on: the first time is before the first step.
        self.steps = -1
        self.first = self.last = self.gap = 0
        # How long what the loop started from was. [tokens of a row]
        self.prompt = -1

    def step(self) -> None:
        """Note that a step has ended."""
        self.steps += 1
        if self.steps < 1:
            return
        now = clock()
        if self.steps == 1:
            self.first = now
        elif now - self.last > self.gap:
            self.gap = now - self.last
        self.last = now


class _Thread(threading.local):
    run: Run | None = None


_thread = _Thread()


def generate(original: Any) -> Any:
    """Wrap `GenerationMixin.generate`."""

    def generate(self: Any, *args: Any, **options: Any) -> Any:
        marks, outer = current.get(), _thread.run
        if outer is not None:
            return _inner(original, outer, self, args, options)
        if marks is None or marks[0] != OPEN:
            return original(self, *args, **options)
        run = _thread.run = Run()
        outside, thread_state.inside = thread_state.inside, True
        result = None
        begun = clock()
        try:
            result = original(self, *args, **options)
            return result
        finally:
            ended = clock()
            _thread.run = None
            thread_state.inside = outside
            if len(marks) < MAX_MARKS:
                try:
                    stage = _first_stage(self, result)
                    _mark(marks, run, stage, begun, ended)
                    if stage == "load":
                        shape = shapes_of([*args, *options.values()])
                        loads.note(LOAD_FIRST_RUN.key, describe(self)[1], shape, begun, run.first or ended)
                    _describe(marks, self, args, options)
                    _count(marks, run, options, result)
                except Exception:
                    log_failure("counting the tokens of generate")

    return generate


def has_unfinished_sequences(original: Any) -> Any:
    """Wrap `GenerationMixin._has_unfinished_sequences`, which every loop asks before each step and after the last."""

    def _has_unfinished_sequences(self: Any, *args: Any, **options: Any) -> Any:
        run = _thread.run
        if run is None:
            return original(self, *args, **options)
        # The answer may be on the device: only then has the step ended.
        answer = original(self, *args, **options)
        run.step()
        return answer

    return _has_unfinished_sequences


def validate_generated_length(original: Any) -> Any:
    """Wrap `GenerationMixin._validate_generated_length`, whose argument is the length of the prompt."""

    def _validate_generated_length(
        self: Any, generation_config: Any, input_ids_length: Any, has_default_max_length: Any
    ) -> Any:
        if _thread.run is not None:
            _thread.run.prompt = input_ids_length
        return original(self, generation_config, input_ids_length, has_default_max_length)

    return _validate_generated_length


def _inner(original: Any, run: Run, model: Any, args: Any, options: Any) -> Any:
    """Run a `generate` inside another one: an assistant's, or the one that the other hands all its work to."""
    if run.steps < 0:
        return original(model, *args, **options)
    _thread.run = Run()
    try:
        return original(model, *args, **options)
    finally:
        _thread.run = run


def _first_stage(model: Any, result: Any) -> str:
    """Return the stage up to the first token: `load` for the first call of a model, which warms it up."""
    if not hasattr(model, "_parameters"):
        # One of another engine, that only looks like a model of transformers.
        return "prefill"
    known = known_models.get(id(model)) or register_model(model)
    if known.cold <= 0:
        return "prefill"
    if result is not None:
        known.cold -= 1
    return "load"


def _mark(marks: Marks, run: Run, stage: str, begun: int, ended: int) -> None:
    if run.steps < 0 <= run.prompt:
        marks.extend(("decode", begun, ended))
    elif run.steps < 2:  # noqa: PLR2004 - one token only, or an exception
        marks.extend((stage, begun, ended))
    else:
        marks.extend((stage, begun, run.first, "decode", run.first, ended))
    if run.first:
        marks.extend(("@first_token", run.first, BY_GENERATE))


def _describe(marks: Marks, model: Any, args: Any, options: Any) -> None:
    marks.extend(describe(model))
    prompt = _prompt(args, options)
    if prompt is not None:
        rows, length = prompt
        marks.extend(("@batch", rows, 0, "@tokens_in", rows * length, 0))


def _count(marks: Marks, run: Run, options: Any, result: Any) -> None:
    if run.gap and options.get("streamer") is not None:
        marks.extend(("@gap", run.gap, 0))
    sequences = getattr(result, "sequences", result)
    # What a loop of the user's own returns may be anything.
    if run.steps < 1 or run.prompt < 0 or len(getattr(sequences, "shape", ())) != 2:  # noqa: PLR2004 - a matrix
        return
    rows, length = sequences.shape
    new = length - run.prompt
    marks.extend(("@tokens_out", rows * new, 0))
    if new > 1 and run.last > run.first:
        marks.extend(("@per_token", run.last - run.first, new - 1))


def _prompt(args: Any, options: Any) -> tuple[int, int] | None:
    """Return rows and length of the prompt; None for audio and images, which are no tokens."""
    ids = args[0] if args else options.get("inputs")
    if ids is None:
        ids = options.get("input_ids")
    if ids is not None:
        # Speech is a matrix too, of numbers with a fraction.
        return tuple(ids.shape) if len(ids.shape) == 2 and not ids.is_floating_point() else None  # noqa: PLR2004 - a matrix
    embeddings = options.get("inputs_embeds")
    return None if embeddings is None else tuple(embeddings.shape[:2])
