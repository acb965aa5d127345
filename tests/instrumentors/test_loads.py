"""Load and warm-up phases of a process: recorded in and outside of requests, each instant once."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import magika
import numpy as np
import onnxruntime
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stagelens.core import names
from stagelens.instrumentors import loads as module
from stagelens.instrumentors import records
from stagelens.instrumentors.agent.spans import LoadSpans
from stagelens.instrumentors.libraries.onnxruntime import OnnxRuntimeInstrumentor
from stagelens.instrumentors.libraries.torch import TorchInstrumentor
from stagelens.instrumentors.libraries.transformers import TransformersInstrumentor
from stagelens.instrumentors.loads import MAX_LOADS, MIN_LOAD_NS, LoadLog, LoadRecord, loads, shapes_of
from tests.instrumentors.conftest import Clock, Finished, using
from tests.instrumentors.libraries import tiny_models

MODEL = next((Path(magika.__file__).parent / "models").rglob("*.onnx"))
# A phase with those inside it: what it takes by itself, and the others. [milliseconds]
phases = st.recursive(st.tuples(st.integers(1, 9), st.just([])), lambda inner: st.tuples(st.integers(1, 9), st.lists(inner, max_size=3)), max_leaves=8)  # fmt: skip


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[LoadRecord]]:
    """Return what was noted, however short it was; from here on."""
    loads.take()
    monkeypatch.setattr(loads, "_free_loads", MAX_LOADS)
    monkeypatch.setattr(module, "MIN_LOAD_NS", 0)
    monkeypatch.setattr(module, "worked", Clock())
    return loads.take


def phases_of(found: list[LoadRecord]) -> list[tuple[str, str, str]]:
    return [(load.phase, load.model, load.shape) for load in found]


@given(st.lists(phases, max_size=4))
def test_nested_phases_add_up_to_the_total_time(tree: list[Any]) -> None:
    now, made = Clock(), LoadLog()
    with pytest.MonkeyPatch.context() as patching:
        patching.setattr(module, "clock", now)
        patching.setattr(module, "worked", lambda: now.now // 3)

        def run(own: int, inside: list[Any]) -> None:
            token = made.begin("outer", reading=True)
            for each in inside:
                run(*each)
            now.now += own * MIN_LOAD_NS
            made.end(token, "read")

        for each in tree:
            run(*each)
    found = made.take()

    assert sum(load.own_ns for load in found) == now.now
    assert {load.model for load in found} <= {"outer"}
    assert all(load.own_ns <= load.end - load.start for load in found)


def test_load_time_is_split_into_read_and_deserialise_and_has_that_of_discarded_phases(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, worked, made = Clock(), Clock(), LoadLog()
    monkeypatch.setattr(module, "clock", clock)
    monkeypatch.setattr(module, "worked", worked)
    token = made.begin("net", reading=True)
    discarded = made.begin()
    clock.now, worked.now = 50 * MIN_LOAD_NS, 20 * MIN_LOAD_NS
    made.note("copy", "weights", "", 45 * MIN_LOAD_NS, 50 * MIN_LOAD_NS)
    made.end(discarded, "")
    made.end(token, "read")

    assert [(load.phase, load.model, load.own_ns // MIN_LOAD_NS) for load in made.take()] == [
        ("copy", "weights", 5),
        ("read", "net", 30),
        ("deserialise", "net", 15),
    ]


def test_short_and_excess_phases_are_omitted() -> None:
    made = LoadLog()
    for number in range(MAX_LOADS + 10):
        made.note("read", str(number), "", 0, MIN_LOAD_NS)
        made.note("read", "short", "", 0, MIN_LOAD_NS - 1)

    assert [load.model for load in made.take()] == [str(number) for number in range(MAX_LOADS)]
    assert made.take() == []


class Refusing:
    @property
    def shape(self) -> Any:
        raise RuntimeError


@pytest.mark.parametrize("values", [[Refusing()], [7, None, "text"], [np.float32(1)]])
def test_an_input_without_a_shape_has_no_shape_text(values: list[Any]) -> None:
    assert shapes_of(values) == ""


def test_a_torch_model_has_phases_also_before_the_first_request(
    noted: Callable[[], list[LoadRecord]], tmp_path: Path
) -> None:
    net, file = torch.nn.Linear(4, 2), str(tmp_path / "weights.pt")
    torch.save(net.state_dict(), file)
    with using(TorchInstrumentor()):
        net.load_state_dict(torch.load(file))
        with pytest.raises(RuntimeError):
            net(torch.zeros(3, 5))
        net(torch.zeros(3, 4))
        net(torch.zeros(6, 4))

    assert phases_of(noted()) == [("read", "weights", ""), ("copy", "Linear", ""), ("first_run", "Linear", "3x4")]


def test_compilation_is_excluded_from_the_first_run(
    noted: Callable[[], list[LoadRecord]], in_a_request: Finished
) -> None:
    with using(TorchInstrumentor()):
        net: Any = torch.compile(torch.nn.Linear(4, 2), backend="eager")
        net(torch.zeros(3, 4))
    compiled, first = noted()

    assert phases_of([compiled, first]) == [("compile", "Linear", ""), ("first_run", "Linear", "3x4")]
    assert first.start <= compiled.start <= compiled.end <= first.end
    assert first.own_ns + compiled.own_ns == first.end - first.start
    assert set(in_a_request.stages()) == {"load"}


def test_a_session_of_onnx_runtime_has_phases(noted: Callable[[], list[LoadRecord]]) -> None:
    with using(OnnxRuntimeInstrumentor()):
        session: Any = onnxruntime.InferenceSession(str(MODEL))
        (wanted,) = session.get_inputs()
        for _ in range(2):
            session.run(None, {wanted.name: np.zeros((1, *wanted.shape[1:]), np.int32)})
    shape = f"1x{wanted.shape[1]}"

    assert phases_of(noted()) == [("read", MODEL.parent.name, ""), ("first_run", MODEL.parent.name, shape)]


def test_a_repository_load_is_named_after_the_repository(noted: Callable[[], list[LoadRecord]], tmp_path: Path) -> None:
    tiny_models.llama().save_pretrained(tmp_path / "tiny-llama")
    with using(TransformersInstrumentor()):
        type(tiny_models.llama()).from_pretrained(str(tmp_path / "tiny-llama"))
    found = noted()

    assert ("read", "tiny-llama", "") in phases_of(found)
    assert {load.model for load in found} == {"tiny-llama"}


def test_a_process_reports_its_start_with_its_first_request(noted: Callable[[], list[LoadRecord]]) -> None:
    assert noted() == []
    spans = LoadSpans()
    loads.note("read", "net", "", 0, 2 * MIN_LOAD_NS)
    (before,), (first,) = spans.take(None), spans.take(records.clock())

    assert [span.attributes[names.LOAD_PHASE] for span in (*before.spans, *first.spans)] == ["read", "start"]
    assert first.spans[0].start == module.born < first.spans[0].end
    assert before.trace_id == first.trace_id
    assert spans.take(records.clock()) == []


def test_a_forked_child_reports_its_age_and_the_loads_of_its_parent(noted: Callable[[], list[LoadRecord]]) -> None:
    assert noted() == []
    loads.note("read", "net", "", 0, 2 * MIN_LOAD_NS)
    parent, child = module.born, os.fork()
    if child == 0:
        os._exit(module.born <= parent or phases_of(loads.take()) != [("read", "net", "")])

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
