"""llama-cpp-python: times completions, chats and embeddings, and the loading of models.

- The model name is the name of the file.
- `decode` is the time in the library, including the texts of tokens. The time of your code between the parts of a stream is not in it.
- Stagelens does not read prompts, texts or token ids.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable
from contextvars import ContextVar
from types import GeneratorType
from typing import Any, TypeAlias

from ...core.names import BY_GENERATE
from .. import recorder, scripts
from ..instrumentor import MIN_CALL_NS, Instrumentor, Target, log_failure, timed_call
from ..records import OPEN, START, STATE, Marks, clock, current, has_capacity
from .model_common import created_name, creation, model_call

Steps: TypeAlias = Generator[Any, Any, Any]


class LlamaCppInstrumentor(Instrumentor):
    library = "llama_cpp"
    title = "llama-cpp-python"
    stages = {
        "prefill": "from the start of a completion, a chat or `generate` to the first token; in a loop of your own, "
        "`eval` of a prompt and the `sample` after it",
        "decode": "from there to the end of the call; in a stream, each further step; in a loop of your own, `eval` of one token "
        "and the `sample` after it",
        "tokenize": "calls of `tokenize`, from 20 µs",
        "forward": "calls of `embed` and `create_embedding`, from 20 µs",
        "load": "the creation of a `Llama`",
    }
    facts = ("model", "batch", "first_token", "tokens_in", "tokens_out", "per_token")
    not_timed = ("`eval` and `sample` in a plain script", "functions of `llama_cpp.llama_cpp`, the interface in C")
    tested = {"llama-cpp-python": "0.3.36"}

    def targets(self) -> Iterable[Target]:
        return (
            ("llama_cpp.llama:Llama", creation, "__init__"),
            ("llama_cpp.llama:Llama", _generate, "generate"),
            ("llama_cpp.llama:Llama", _eval, "eval"),
            ("llama_cpp.llama:Llama", _sample, "sample"),
            ("llama_cpp.llama:Llama", timed_call("tokenize"), "tokenize"),
            ("llama_cpp.llama:Llama", _call, "__call__ create_completion create_chat_completion"),
            ("llama_cpp.llama:Llama", model_call(created_name), "create_embedding embed"),
        )


class _Generation:
    first = 0
    request: tuple[Marks, ContextVar[Marks | None]] | None = None
    _has_started = False

    def begin(self) -> scripts.Scope | None:
        """Begin its request if this is a plain script, or continue it in a later step; return None if it has none."""
        is_first, self._has_started = not self._has_started, True
        if current.get() is not None or _state.generation is not None:
            return None
        if self.request is not None:
            marks, variable = self.request
            return marks, variable.set(marks)
        scope = scripts.begin() if is_first and scripts.on else None
        if scope is not None:
            self.request = scope[0], scope[1].var
        return scope


class _State(threading.local):
    """The outermost call whose code runs on this thread, and the stage of the last `eval` outside of such calls."""

    generation: _Generation | None = None
    stage = "prefill"


_state = _State()


def _call(original: Any) -> Any:
    def call(self: Any, *args: Any, **options: Any) -> Any:
        if _state.generation is not None:
            return original(self, *args, **options)
        generation = _Generation()
        scope = generation.begin()
        if scope is None:
            result = _run(generation, original, self, *args, **options)
        else:
            result = scripts.call(scope, created_name(self), _run, generation, original, self, *args, **options)
        return _stream(created_name(self), generation, result) if isinstance(result, GeneratorType) else result  # pyright: ignore[reportUnknownArgumentType]

    return call


def _generate(original: Any) -> Any:
    def generate(self: Any, *args: Any, **options: Any) -> Steps:
        steps = _counted(self, args[0] if args else options.get("tokens"), original(self, *args, **options))
        if _state.generation is None:
            steps = _stream(created_name(self), _Generation(), steps)
        return (yield from steps)

    return generate


def _eval(original: Any) -> Any:
    def eval_(self: Any, tokens: Any, *args: Any, **options: Any) -> Any:
        if _state.generation is None and current.get() is not None:
            _state.stage = "decode" if len(tokens) == 1 and self.n_tokens else "prefill"
            return timed_call(_state.stage)(original)(self, tokens, *args, **options)
        return original(self, tokens, *args, **options)

    return eval_


def _sample(original: Any) -> Any:
    def sample(*args: Any, **options: Any) -> Any:
        if _state.generation is None and current.get() is not None:
            return timed_call(_state.stage)(original)(*args, **options)
        return original(*args, **options)

    return sample


def _run(generation: _Generation, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call *function*, a part of *generation*, and record it as `prefill` until the first token and `decode` from there."""
    marks = current.get()
    if marks is None or _state.generation is not None:
        return function(*args, **options)
    is_decode = generation.first > 0
    _state.generation = generation
    started = clock()
    try:
        return function(*args, **options)
    finally:
        ended = clock()
        _state.generation = None
        if ended - started >= MIN_CALL_NS and has_capacity(marks):
            first = started if is_decode else generation.first or ended
            if not is_decode:
                marks.extend(("prefill", started, first))
            if ended - first >= MIN_CALL_NS:
                marks.extend(("decode", first, ended))


def _stream(name: str, generation: _Generation, steps: Steps) -> Steps:
    """Yield what *steps* yields, and record each step; in a plain script all of them are one request."""
    ended, error_type, sent = 0, "", None
    try:
        while True:
            # The code of the user between the steps is not in the context of the request.
            scope = generation.begin()
            try:
                step = _run(generation, steps.send, sent)
            except StopIteration as stop:
                return stop.value
            except BaseException as error:
                error_type = type(error).__qualname__
                raise
            finally:
                ended = clock()
                if scope is not None:
                    recorder.end(scope[1])
            sent = yield step
    finally:
        steps.close()
        if generation.request is not None:
            marks = generation.request[0]
            recorder.finish(marks, marks[START], ended, name, error_type, 0, "internal")


def _counted(model: Any, prompt: Any, steps: Steps) -> Steps:
    marks: Marks | None = None
    count, first, last, sent = 0, 0, 0, None
    try:
        while True:
            marks = current.get()
            started = clock()
            try:
                token = steps.send(sent)
            except StopIteration:
                return
            last = clock()
            count += 1
            if not first:
                first = last
                if marks is not None and has_capacity(marks):
                    _record_first_token(marks, model, prompt, started, first)
            sent = yield token
    finally:
        steps.close()
        # A stream may be closed long after its request, in any context.
        if marks is not None and marks[STATE] == OPEN and count and has_capacity(marks):
            marks.extend(("@tokens_out", count, 0))
            if count > 1:
                marks.extend(("@per_token", last - first, count - 1))


def _record_first_token(marks: Marks, model: Any, prompt: Any, started: int, first: int) -> None:
    generation = _state.generation
    if generation is not None and not generation.first:
        generation.first = first
    else:
        # A further completion of the same call, such as a chat with functions.
        marks.extend(("prefill", started, first))
    marks.extend(("@first_token", first, BY_GENERATE, "@model", created_name(model), 0))
    try:
        marks.extend(("@tokens_in", len(prompt), 0))
    except Exception:
        log_failure("counting the tokens of a prompt")
