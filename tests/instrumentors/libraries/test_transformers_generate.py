"""`generate` of transformers: to the first token it is prefill, then decode, whatever loop it runs in."""

from __future__ import annotations

import copy
import threading
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch._dynamo
from transformers import GenerationMixin, LogitsProcessor, StoppingCriteria, TextIteratorStreamer

from stagelens.instrumentors import records
from stagelens.instrumentors.instrumentor import Instrumentor
from stagelens.instrumentors.libraries.torch import TorchInstrumentor
from stagelens.instrumentors.libraries.transformers import TransformersInstrumentor
from tests.instrumentors.libraries.tiny_models import bert, llama, t5, tokenizer

if TYPE_CHECKING:
    from conftest import Finished

INSTRUMENTOR = TransformersInstrumentor
pytestmark = pytest.mark.usefixtures("instrumented", "torch_instrumented")

PROMPT = torch.tensor([[5, 6, 7]])
NEW = 6
BATCH = ["word1 word2 word3", "word4"]
# Every decoding loop of the library: greedy, sampling, beams, assisted by a model and by the prompt.
LOOPS: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "sampling": {"do_sample": True, "top_k": 5},
    "beams": {"num_beams": 3, "num_return_sequences": 2},
    "assisted": {"do_sample": False, "assistant_model": 1},
    "assisted by the prompt": {"do_sample": False, "prompt_lookup_num_tokens": 2},
    "prefill in chunks": {"do_sample": False, "prefill_chunk_size": 2},
    "static cache": {"do_sample": False, "cache_implementation": "static"},
    "all outputs": {"do_sample": False, "return_dict_in_generate": True, "output_scores": True},
}
# Before, assisted loops also ask the stopping criteria about candidates, and chunks need arguments of their own.
SINCE = {"assisted": "5.23", "assisted by the prompt": "5.23", "prefill in chunks": "5.23"}


@pytest.fixture(name="torch_instrumented")
def fixture_torch_instrumented() -> Generator[None]:
    """Have the modules timed too, as in a service that has warmed up: none of them may show inside `generate`."""
    module = TorchInstrumentor()
    module.instrument()
    for model in (llama(), llama(seed=1), bert()):
        model(PROMPT)
    t5()(input_ids=PROMPT, decoder_input_ids=PROMPT)
    yield
    module.uninstrument()


class Watch(StoppingCriteria):
    def __init__(self) -> None:
        self.times: list[int] = []

    def __call__(self, input_ids: Any, *_: Any, **_options: Any) -> Any:
        self.times.append(records.clock())
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)


class Failing(LogitsProcessor):
    def __init__(self, step: int) -> None:
        self._left = step

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        self._left -= 1
        if not self._left:
            raise KeyError(input_ids.shape)
        return scores


def run(model: Any, loop: str, **options: Any) -> Any:
    """Generate from the prompt in one of the loops, with random numbers that repeat."""
    options = {"max_new_tokens": NEW, **LOOPS[loop], **options}
    if "assistant_model" in options:
        options["assistant_model"] = llama(seed=1)
    torch.manual_seed(0)
    output = model.generate(PROMPT, **options)
    return getattr(output, "sequences", output)


def facts(request: Finished) -> dict[str, tuple[Any, Any]]:
    return {key: (first, second) for key, first, second in request.marks() if key.startswith("@")}


@pytest.mark.parametrize(
    "loop", [pytest.param(loop, marks=pytest.mark.since("transformers", SINCE.get(loop, "4.46"))) for loop in LOOPS]
)
def test_every_loop_is_prefill_and_decode(instrumented: Instrumentor, in_a_request: Finished, loop: str) -> None:
    watch = Watch()
    tokens = run(llama(), loop, stopping_criteria=[watch])
    instrumented.uninstrument()
    records.current.set(None)

    rows = tokens.shape[0]
    (_, started, first), (_, handed, ended) = [mark for mark in in_a_request.marks() if not mark[0].startswith("@")]
    seen = facts(in_a_request)
    assert torch.equal(tokens, run(llama(), loop))
    assert in_a_request.stages() == ["prefill", "decode"]
    assert started < watch.times[0] < first == handed < watch.times[1]
    assert watch.times[-1] < ended
    assert seen["@first_token"] == (first, "generate")
    assert seen["@batch"] == (1, 0)
    assert seen["@tokens_in"] == (3, 0)
    assert seen["@tokens_out"] == (rows * NEW, 0)
    assert seen["@per_token"][1] == NEW - 1
    assert watch.times[-1] - first < seen["@per_token"][0] < ended - first
    assert (seen["@model"][0], seen["@device"][0]) == ("LlamaForCausalLM", "cpu")
    assert "@gap" not in seen


def test_the_first_generate_of_a_model_is_load(in_a_request: Finished) -> None:
    cold = copy.deepcopy(llama())
    for _ in range(2):
        run(cold, "greedy")

    assert in_a_request.stages() == ["load", "decode", "prefill", "decode"]


def test_compilation_during_decoding_is_load(in_a_request: Finished) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda scores: scores * 2, backend="eager")

    class Compiled(LogitsProcessor):
        def __call__(self, *arguments: Any) -> Any:
            return compiled(arguments[1])

    run(llama(), "greedy", logits_processor=[Compiled()])

    assert in_a_request.stages() == ["load", "prefill", "decode"]


@pytest.mark.parametrize(
    ("model", "prompt", "rows", "tokens"),
    [
        (llama, lambda: tokenizer()(BATCH, padding=True, return_tensors="pt"), 2, 6),
        (t5, lambda: {"input_ids": PROMPT}, 1, 3),
        (llama, lambda: {"inputs_embeds": llama().get_input_embeddings()(PROMPT)}, 1, 3),
    ],
    ids=["padding", "encoder", "embeddings"],
)
def test_a_prompt_of_any_kind_is_counted(
    in_a_request: Finished, model: Any, prompt: Any, rows: int, tokens: int
) -> None:
    model().generate(**prompt(), max_new_tokens=NEW, do_sample=False)

    seen = facts(in_a_request)
    assert in_a_request.stages()[-2:] == ["prefill", "decode"]
    assert (seen["@batch"], seen["@tokens_in"], seen["@tokens_out"]) == ((rows, 0), (tokens, 0), (rows * NEW, 0))
    assert seen["@per_token"][1] == NEW - 1


def test_one_token_is_prefill_only(in_a_request: Finished) -> None:
    run(llama(), "greedy", max_new_tokens=1)

    assert in_a_request.stages() == ["prefill"]
    assert facts(in_a_request)["@tokens_out"] == (1, 0)
    assert "@per_token" not in facts(in_a_request)


def test_a_stream_is_consumed_while_it_is_generated(in_a_request: Finished) -> None:
    marks = records.current.get()
    streamer = TextIteratorStreamer(tokenizer(), skip_prompt=True)
    watch = Watch()

    def generate() -> None:
        records.current.set(marks)
        run(llama(), "greedy", streamer=streamer, stopping_criteria=[watch])

    thread = threading.Thread(target=generate)
    thread.start()
    words = "".join(streamer).split()
    thread.join()

    seen = facts(in_a_request)
    assert len(words) == NEW
    assert in_a_request.stages() == ["prefill", "decode"]
    assert seen["@per_token"][0] / (NEW - 1) <= seen["@gap"][0] < seen["@per_token"][0]


@pytest.mark.since("transformers", "4.57")
def test_a_custom_decoding_loop_is_decode(in_a_request: Finished) -> None:
    def loop(model: Any, input_ids: Any, **_: Any) -> Any:
        for _step in range(NEW):
            token = model(input_ids).logits[:, -1].argmax(-1, keepdim=True)
            input_ids = torch.cat([input_ids, token], dim=-1)
        return input_ids

    tokens = llama().generate(PROMPT, custom_generate=loop, max_new_tokens=NEW)

    assert tokens.shape == (1, 3 + NEW)
    assert in_a_request.stages() == ["decode"]
    assert not {"@first_token", "@tokens_out", "@per_token"} & facts(in_a_request).keys()


@pytest.mark.since("transformers", "4.57")
def test_a_delegating_generate_is_recorded_once(in_a_request: Finished) -> None:
    def loop(model: Any, input_ids: Any, **_: Any) -> Any:
        mixin: Any = GenerationMixin
        return mixin.generate(model, input_ids, max_new_tokens=NEW, do_sample=False)

    llama().generate(PROMPT, custom_generate=loop, max_new_tokens=NEW)

    assert in_a_request.stages() == ["prefill", "decode"]
    assert facts(in_a_request)["@tokens_out"] == (NEW, 0)


@pytest.mark.parametrize(("step", "stages"), [(1, ["prefill"]), (3, ["prefill", "decode"])])
def test_an_exception_of_the_loop_is_unchanged(in_a_request: Finished, step: int, stages: list[str]) -> None:
    with pytest.raises(KeyError):
        run(llama(), "greedy", logits_processor=[Failing(step)])

    assert in_a_request.stages() == stages
    assert "@tokens_out" not in facts(in_a_request)

    run(llama(), "greedy")

    assert in_a_request.stages() == [*stages, "prefill", "decode"]
    assert facts(in_a_request)["@tokens_out"] == (NEW, 0)
