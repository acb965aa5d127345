"""vLLM in the process of your code: times calls of an `LLM`, and the loading of its model.

- With `LLM(..., disable_log_stats=False)`, vLLM reports the `queue`, `prefill` and `decode` of a call with one prompt.
- For `vllm serve`, Stagelens uses [the times that the server reports](../reported.md).
- Stagelens does not read prompts or texts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ...core.names import BY_ENGINE
from ..instrumentor import Instrumentor, Target, log_failure
from ..records import Marks, clock, current, has_capacity
from . import transformers
from .model_common import model_call
from .torch.models import thread_state

CALLS = "generate chat beam_search encode embed classify score"


class VllmInstrumentor(Instrumentor):
    library = "vllm"
    title = "vLLM"
    stages = {
        "forward": "calls of `generate`, `chat`, `beam_search`, `encode`, `embed`, `classify` and `score`, without the stages "
        "that vLLM reports",
        "queue": "the wait of a request for the scheduler, as vLLM reports it",
        "prefill": "from there to the first token, as vLLM reports it",
        "decode": "from the first to the last token, as vLLM reports it",
        "load": "the creation of an `LLM`",
    }
    facts = ("model", "batch", "first_token", "tokens_in", "tokens_out", "per_token")
    not_timed = ("`queue`, `prefill` and `decode` of a call with several prompts, which share the steps of the engine",)
    tested = {"vllm": "0.32.0"}

    def targets(self) -> Iterable[Target]:
        return (
            ("vllm.entrypoints.llm:LLM", transformers.wrap_load, "__init__"),
            # Some methods live in base classes.
            ("vllm.entrypoints.llm:LLM.__mro__", lambda original: model_call(_name)(_recording(original)), CALLS),
        )


def _recording(original: Any) -> Any:
    """Wrap a call so that what vLLM reports about its outputs is recorded, and not the modules of an engine in this process."""

    def call(*args: Any, **options: Any) -> Any:
        busy, thread_state.inside = thread_state.inside, True
        started = clock()
        try:
            outputs = original(*args, **options)
        finally:
            thread_state.inside = busy
        marks = current.get()
        if marks is not None and has_capacity(marks):
            try:
                _record(marks, outputs, started, clock())
            except Exception:
                log_failure("reading the outputs of vLLM")
        return outputs

    return call


def _record(marks: Marks, outputs: list[Any], started: int, ended: int) -> None:
    prompts = [output for output in outputs if getattr(output, "prompt_token_ids", None)]
    # A model that embeds, classifies or scores has one output, not a list of completions.
    generated = [completion for output in prompts if isinstance(output.outputs, list) for completion in output.outputs]
    marks.extend(("@tokens_in", sum(len(output.prompt_token_ids) for output in prompts), 0))
    if generated:
        marks.extend(("@tokens_out", sum(len(completion.token_ids) for completion in generated), 0))
    statistics = getattr(outputs[0], "metrics", None) if len(outputs) == 1 else None
    if statistics is None:
        return
    # Seconds of the same clock as ours, also in the process of the engine.
    times = (statistics.queued_ts, statistics.scheduled_ts, statistics.first_token_ts, statistics.last_token_ts)
    queued, scheduled, first, last = (int(seconds * 1e9) for seconds in times)
    if not started <= queued <= scheduled <= first <= last <= ended:
        return
    marks.extend(("queue", queued, scheduled, "prefill", scheduled, first, "decode", first, last))
    marks.extend(("@first_token", first, BY_ENGINE))
    if len(generated) == 1 and len(generated[0].token_ids) > 1:
        marks.extend(("@per_token", last - first, len(generated[0].token_ids) - 1))


def _name(llm: Any) -> str:
    return transformers.repository_name(str(llm.llm_engine.model_config.model))
