"""ONNX Runtime: the stages and facts of runs, with the real model inside the magika wheel, and copies to and from a device."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import magika
import numpy as np
import onnxruntime
import pytest
from onnxruntime import OrtValue
from onnxruntime.capi import onnxruntime_inference_collection as collection
from onnxruntime.capi.onnxruntime_inference_collection import OrtDevice
from onnxruntime.capi.onnxruntime_pybind11_state import OrtValueVector

from stagelens.instrumentors import records
from stagelens.instrumentors.libraries import onnxruntime_session
from stagelens.instrumentors.libraries.onnxruntime import OnnxRuntimeInstrumentor

if TYPE_CHECKING:
    from conftest import Finished

INSTRUMENTOR = OnnxRuntimeInstrumentor
pytestmark = pytest.mark.usefixtures("instrumented")

MODEL = next((Path(magika.__file__).parent / "models").rglob("*.onnx"))
FACTS = {"@model": MODEL.parent.name, "@device": "cpu", "@provider": "CPUExecutionProvider", "@batch": 1}


def load() -> Any:
    token = records.current.set(None)
    try:
        return onnxruntime.InferenceSession(str(MODEL), providers=["CPUExecutionProvider"])
    finally:
        records.current.reset(token)


def feed_of(session: Any, batch: int = 1) -> dict[str, Any]:
    return {node.name: np.zeros([batch, *node.shape[1:]], dtype=np.int32) for node in session.get_inputs()}


@pytest.fixture(scope="module")
def warm() -> Any:
    """Load the model once, and run it once, before it is instrumented."""
    session = load()
    OnnxRuntimeInstrumentor().instrument()
    session.run(None, feed_of(session))
    OnnxRuntimeInstrumentor().uninstrument()
    return session


@pytest.fixture
def feed(warm: Any) -> dict[str, Any]:
    return feed_of(warm)


def test_every_way_to_run_a_session_is_forward(in_a_request: Finished, warm: Any, feed: dict[str, Any]) -> None:
    values: dict[str, Any] = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in feed.items()}
    output = warm.get_outputs()[0].name
    binding = warm.io_binding()
    for name, array in feed.items():
        binding.bind_cpu_input(name, array)
    binding.bind_output(output)
    feeds, fetches = OrtValueVector(), OrtValueVector()
    device: Any = OrtDevice.make("cpu", 0)
    for value in values.values():
        feeds.push_back(value._get_c_value())

    plain = warm.run(None, feed)[0]
    keyword = warm.run(output_names=None, input_feed=feed, run_options=None)[0]
    by_value = warm.run_with_ort_values(None, values)[0].numpy()
    cpu = device._get_c_device()
    warm.run_with_ortvaluevector(onnxruntime.RunOptions(), list(values), feeds, [output], fetches, [cpu])
    warm.run_with_iobinding(binding)

    assert in_a_request.stages() == ["forward"] * 5
    for other in (keyword, by_value, fetches[0].numpy(), binding.copy_outputs_to_cpu()[0]):
        np.testing.assert_array_equal(plain, other)


@pytest.mark.parametrize(
    ("device", "batches", "cold"),
    [
        ("cpu", (1, 1, 2, 3), (0,)),
        ("cuda", (1, 1, 2, 1, 2), (0, 2)),
        # The number of cold shapes is limited.
        ("cuda", (1, 2, 3, 4, 5, 1), (0, 1, 2)),
    ],
)
def test_the_first_run_of_a_session_and_on_an_accelerator_of_each_shape_is_load(
    in_a_request: Finished,
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    batches: tuple[int, ...],
    cold: tuple[int, ...],
) -> None:
    monkeypatch.setitem(onnxruntime_session.DEVICES, "CPU", device)
    monkeypatch.setattr(onnxruntime_session, "MAX_SHAPES", 3)
    session = load()
    for batch in batches:
        session.run(None, feed_of(session, batch))

    assert in_a_request.stages() == ["load" if run in cold else "forward" for run in range(len(batches))]
    assert in_a_request.facts() == {**FACTS, "@device": device, "@batch": batches[-1]}
    assert len(onnxruntime_session.known_of(session).seen) <= 3


def fail(session: Any) -> None:
    with pytest.raises(ValueError, match=r"Required inputs"):
        session.run(None, {})


def change_providers(session: Any) -> None:
    session.run(None, feed_of(session))
    session.set_providers(["CPUExecutionProvider"])


@pytest.mark.parametrize("start", [fail, change_providers])
def test_a_failed_run_and_one_with_other_providers_are_no_warm_up(in_a_request: Finished, start: Any) -> None:
    session = load()
    start(session)
    session.run(None, feed_of(session))
    session.run(None, feed_of(session))

    assert in_a_request.stages() == ["load", "load", "forward"]


def test_every_run_started_cold_is_load(in_a_request: Finished) -> None:
    session = load()
    known = onnxruntime_session.known_of(session)
    first, second = known.unseen({}), known.unseen({})
    assert first is not None
    known.learn(first)

    assert second == first
    assert known.unseen({}) is None
    assert in_a_request.stages() == []


def test_an_unawaited_run_is_recorded_as_launch(in_a_request: Finished, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(onnxruntime_session.DEVICES, "CPU", "cuda")
    session = load()
    options = onnxruntime.RunOptions()
    session.run(None, feed_of(session), options)
    session.run(None, feed_of(session), options)
    options.add_run_config_entry(onnxruntime_session.ASYNCHRONOUS, "1")
    session.run(None, feed_of(session), options)

    assert in_a_request.stages() == ["load", "forward", "forward@launch"]


def test_facts_are_recorded_once_per_change(in_a_request: Finished, warm: Any) -> None:
    other = load()
    for session, batch in ((warm, 1), (warm, 1), (warm, 2), (other, 2), (warm, 2), (warm, 2)):
        session.run(None, feed_of(session, batch))

    assert [value for key, value, _ in in_a_request.marks() if key == "@batch"] == [1, 2, 2, 2]
    assert in_a_request.facts() == {**FACTS, "@batch": 2}


@pytest.mark.parametrize("kind", ["lists", "values"])
def test_inputs_need_not_be_arrays(in_a_request: Finished, warm: Any, kind: str) -> None:
    feed = feed_of(warm, 2)
    expected = warm.run(None, feed)[0]
    other = {
        name: array.tolist() if kind == "lists" else onnxruntime.OrtValue.ortvalue_from_numpy(array)
        for name, array in feed.items()
    }
    actual = warm.run(None, other)[0]

    np.testing.assert_array_equal(actual, expected)
    assert [onnxruntime_session.shape_of(value) for value in other.values()] == [(2, 2048)]
    assert [value for key, value, _ in in_a_request.marks() if key == "@batch"] == [2]


class Node:
    def __init__(self, *shape: Any) -> None:
        self.name = "x"
        self.shape = list(shape)

    def get_inputs(self) -> list[Node]:
        return [self]


@pytest.mark.parametrize(
    ("shape", "batched"),
    [
        (("batch_size", 3, 224, 224), True),
        (("unk__214", 2048), True),
        ((None, "?"), True),
        (("batch",), True),
        (("N",), True),
        ((None,), False),
        (("samples",), False),
        (("sequence_length", "batch"), False),
        ((1, 3, 640, 640), False),
        ((), False),
    ],
)
def test_the_batch_is_the_free_first_dimension_that_counts_items(shape: tuple[Any, ...], batched: bool) -> None:
    assert bool(onnxruntime_session.batched_input(Node(*shape))) is batched


def test_an_asynchronous_run_lasts_until_its_callback(in_a_request: Finished, warm: Any, feed: dict[str, Any]) -> None:
    done = threading.Event()
    received: list[Any] = []

    def callback(results: Any, data: Any, error: Any) -> None:
        received.extend((results, data, error, records.current.get(), threading.get_ident()))
        done.set()

    warm.run_async(None, feed, callback, "mine")

    assert done.wait(30)
    np.testing.assert_array_equal(received[0][0], warm.run(None, feed)[0])
    assert received[1:3] == ["mine", ""]
    assert received[3] is records.current.get()
    assert received[4] != threading.get_ident()
    assert in_a_request.stages() == ["forward", "forward"]
    assert in_a_request.facts() == FACTS


def test_a_callback_outside_a_request_records_nothing(finished: Finished, feed: dict[str, Any]) -> None:
    session = load()
    done = threading.Event()
    received: list[Any] = []

    def callback(*_: Any) -> None:
        received.append(records.current.get())
        done.set()

    session.run_async(None, feed, callback, None)

    assert done.wait(30)
    assert received == [None]
    assert list(finished) == []
    assert onnxruntime_session.known_of(session).warm


def test_an_invalid_callback_is_refused_by_the_library(in_a_request: Finished, warm: Any, feed: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        warm.run_async(None, feed, "no function", None)

    assert in_a_request.stages() == []


def test_an_unreadable_input_is_still_run(
    in_a_request: Finished, warm: Any, feed: dict[str, Any], reported: set[str], make_fail: Callable[[Any, str], None]
) -> None:
    make_fail(onnxruntime_session, "shape_of")
    warm.run(None, feed)
    with pytest.raises(AttributeError, match="keys"):
        warm.run(None, [feed])

    assert in_a_request.stages() == ["forward", "forward"]
    assert len(reported) == 1


def test_an_uninitialized_session_raises_its_own_error(in_a_request: Finished, reported: set[str]) -> None:
    session = onnxruntime.InferenceSession.__new__(onnxruntime.InferenceSession)
    with pytest.raises(AttributeError, match=r"object has no attribute '_(sess|inputs_meta)'"):
        session.run(None, {})

    assert in_a_request.stages() == ["load"]
    assert reported == set()


def test_session_state_is_freed_with_the_session(warm: Any) -> None:
    warm.run(None, feed_of(warm))
    # Those of earlier tests go now.
    gc.collect()
    before = len(onnxruntime_session.sessions)
    for _ in range(3):
        short = load()
        short.run(None, feed_of(short))
        del short
    gc.collect()

    assert len(onnxruntime_session.sessions) == before


def test_a_model_from_bytes_is_named_after_its_graph(in_a_request: Finished, feed: dict[str, Any]) -> None:
    session = onnxruntime.InferenceSession(MODEL.read_bytes(), providers=["CPUExecutionProvider"])
    session.run(None, feed)

    assert in_a_request.stages() == ["load", "load"]
    assert in_a_request.facts()["@model"] == session.get_modelmeta().graph_name


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/models/resnet50.onnx", "resnet50"),
        ("/repository/ocr/3/model.onnx", "ocr"),
        ("/wheel/magika/models/standard_v3_3/model.onnx", "standard_v3_3"),
        (
            "/hub/models--org--bert/snapshots/0123456789abcdef0123456789abcdef01234567/onnx/model_q4.onnx",
            "models--org--bert",
        ),
        ("model.onnx", "model"),
        ("1/model.onnx", "model"),
        ("/home/somebody/model.onnx", "model"),
        ("/Users/somebody/1/model.onnx", "model"),
        (str(Path.home() / "model.onnx"), "model"),
    ],
)
def test_a_model_is_named_after_its_file_or_folder(path: str, name: str) -> None:
    assert onnxruntime_session.model_name(path) == name


# Copies between the CPU and a device. No device is here, and this ONNX Runtime has no memory but the CPU's. What says where
# something is (`device_name`, the provider of a session, the argument of a method) is therefore made to lie; everything else is
# the real library.

ARRAY = np.zeros([1, 2048], dtype=np.int32)


def bound() -> tuple[Any, Any]:
    """Load the model outside any request; return it with a binding with a bound output."""
    session = load()
    binding = session.io_binding()
    binding.bind_output(session.get_outputs()[0].name)
    return session, binding


@pytest.fixture
def on_cuda(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Give a function that moves values to a device, by their word; sessions are there from the start."""
    moved: list[OrtValue] = []
    monkeypatch.setitem(onnxruntime_session.DEVICES, "CPU", "cuda")
    monkeypatch.setattr(OrtValue, "device_name", lambda self: "cuda" if any(self is one for one in moved) else "cpu")
    # A value is made on the CPU, whatever device it is asked for.
    cpu = collection.OrtDevice.make("cpu", 0)
    monkeypatch.setattr(collection.OrtDevice, "make", staticmethod(lambda *_: cpu))
    # The same before ONNX Runtime 1.30.
    library: Any = collection.C
    monkeypatch.setattr(collection, "get_ort_device_type", lambda *_: library.OrtDevice.cpu())
    return lambda *values: moved.extend(values)


def test_on_the_cpu_nothing_is_copied(in_a_request: Finished) -> None:
    session, binding = bound()
    value = OrtValue.ortvalue_from_numpy(ARRAY.copy())
    value.update_inplace(ARRAY)
    value.numpy()
    binding.bind_cpu_input("bytes", ARRAY)
    binding.bind_ortvalue_input("bytes", value)
    binding.bind_input("bytes", "cpu", 0, np.int32, ARRAY.shape, ARRAY.ctypes.data)
    binding.synchronize_inputs()
    session.run_with_iobinding(binding)
    binding.synchronize_outputs()
    binding.copy_outputs_to_cpu()

    assert in_a_request.stages() == ["load"]


def test_arrays_are_copied_to_the_device_and_back(in_a_request: Finished, on_cuda: Callable[..., None]) -> None:
    # Kept: the value lies in it, though it was asked for on a device that would have a copy.
    array = ARRAY.copy()
    value = OrtValue.ortvalue_from_numpy(array, "cuda", 0)
    on_cuda(value)
    value.update_inplace(ARRAY + 1)
    copied = value.numpy()

    assert in_a_request.stages() == ["h2d", "h2d", "d2h"]
    np.testing.assert_array_equal(copied, ARRAY + 1)


@pytest.mark.since("onnxruntime", "1.26")
def test_a_value_is_copied_by_numpy(in_a_request: Finished, on_cuda: Callable[..., None]) -> None:
    value = OrtValue.ortvalue_from_numpy(ARRAY)
    on_cuda(value)
    copied = np.asarray(value)

    assert in_a_request.stages() == ["d2h"]
    np.testing.assert_array_equal(copied, ARRAY)


@pytest.mark.since("onnxruntime", "1.26")
def test_a_value_is_copied_from_another(in_a_request: Finished, on_cuda: Callable[..., None]) -> None:
    here, there, other = (OrtValue.ortvalue_from_numpy(ARRAY + number) for number in range(3))
    on_cuda(there, other)
    there.update_inplace(here)
    here.update_inplace(there)
    there.update_inplace(other)
    here.update_inplace(here)

    assert in_a_request.stages() == ["h2d", "d2h"]


def test_a_binding_copies_inputs_of_other_devices(in_a_request: Finished, on_cuda: Callable[..., None]) -> None:
    session, binding = bound()
    here, there = OrtValue.ortvalue_from_numpy(ARRAY), OrtValue.ortvalue_from_numpy(ARRAY)
    on_cuda(there)
    binding.bind_ortvalue_input("bytes", there)
    binding.bind_ortvalue_input("bytes", here)
    binding.bind_input("bytes", "cuda", 0, np.int32, ARRAY.shape, ARRAY.ctypes.data)
    binding.bind_input("bytes", "cpu", 0, np.int32, ARRAY.shape, ARRAY.ctypes.data)
    binding.bind_cpu_input("bytes", ARRAY)
    binding.synchronize_inputs()
    session.run_with_iobinding(binding)
    outputs = binding.copy_outputs_to_cpu()

    assert in_a_request.stages() == ["h2d", "h2d", "h2d", "h2d", "load", "d2h"]
    assert outputs[0].shape[0] == 1


def test_waiting_for_the_outputs_is_forward(in_a_request: Finished, on_cuda: Callable[..., None]) -> None:
    session, binding = bound()
    on_cuda()
    options = onnxruntime.RunOptions()
    options.add_run_config_entry(onnxruntime_session.ASYNCHRONOUS, "1")
    binding.bind_cpu_input("bytes", ARRAY)
    for _ in range(2):
        session.run_with_iobinding(binding, options)
        binding.synchronize_outputs()

    assert in_a_request.stages() == ["h2d", "load", "forward", "forward@launch", "forward"]


@pytest.mark.parametrize("way", ["array", "value", "memory"])
def test_a_binding_records_batch_and_shape(in_a_request: Finished, on_cuda: Callable[..., None], way: str) -> None:
    session, binding = bound()
    on_cuda()
    arrays = {batch: np.zeros([batch, 2048], dtype=np.int32) for batch in (1, 3)}
    for batch in (1, 1, 3, 3):
        token = records.current.set(None)
        if way == "array":
            binding.bind_cpu_input("bytes", arrays[batch])
        elif way == "value":
            binding.bind_ortvalue_input(name="bytes", ortvalue=OrtValue.ortvalue_from_numpy(arrays[batch]))
        else:
            address = arrays[batch].ctypes.data
            binding.bind_input("bytes", "cpu", 0, np.int32, list(arrays[batch].shape), buffer_ptr=address)
        # The output of the run before has its shape.
        binding.bind_output("target_label")
        records.current.reset(token)
        session.run_with_iobinding(binding)

    assert in_a_request.stages() == ["load", "forward", "load", "forward"]
    assert in_a_request.facts()["@batch"] == 3


def test_an_agent_failure_is_reported_once_and_the_copy_runs(
    in_a_request: Finished, reported: set[str], make_fail: Callable[[Any, str], None]
) -> None:
    value = OrtValue.ortvalue_from_numpy(ARRAY)
    make_fail(OrtValue, "device_name")
    for _ in range(2):
        np.testing.assert_array_equal(value.numpy(), ARRAY)

    assert in_a_request.stages() == []
    assert len(reported) == 1
