"""ONNX Runtime: copies between the CPU and a device.

No device is here, and this ONNX Runtime has no memory but the CPU's. What says where something is (`device_name`, the
provider of a session, the argument of a method) is therefore made to lie; everything else is the real library.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import magika
import numpy as np
import onnxruntime
import pytest
from onnxruntime import OrtValue
from onnxruntime.capi import onnxruntime_inference_collection as collection

from stagelens.instrumentors import records
from stagelens.instrumentors.libraries import onnxruntime_session
from stagelens.instrumentors.libraries.onnxruntime import OnnxRuntimeInstrumentor

if TYPE_CHECKING:
    from conftest import Finished

INSTRUMENTOR = OnnxRuntimeInstrumentor
pytestmark = pytest.mark.usefixtures("instrumented")

MODEL = next((Path(magika.__file__).parent / "models").rglob("*.onnx"))
ARRAY = np.zeros([1, 2048], dtype=np.int32)


def bound() -> tuple[Any, Any]:
    """Load the model outside any request; return it with a binding with a bound output."""
    token = records.current.set(None)
    session = onnxruntime.InferenceSession(str(MODEL), providers=["CPUExecutionProvider"])
    records.current.reset(token)
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


def test_an_invalid_call_raises_the_library_error(in_a_request: Finished, reported: set[str]) -> None:
    _, binding = bound()
    factory: Any = OrtValue.ortvalue_from_numpy
    with pytest.raises(TypeError, match=r"numpy_obj"):
        factory()
    with pytest.raises(TypeError, match=r"arr_on_cpu"):
        binding.bind_cpu_input("bytes")
    with pytest.raises(RuntimeError):
        binding.bind_cpu_input("no such input", ARRAY)

    assert in_a_request.stages() == []
    assert reported == set()


@pytest.mark.since("onnxruntime", "1.22")  # before, it is a static method
def test_the_factory_is_still_a_class_method() -> None:
    class Mine(OrtValue):
        pass

    assert type(Mine.ortvalue_from_numpy(ARRAY)) is Mine
    assert type(OrtValue.ortvalue_from_numpy(ARRAY)) is OrtValue
    assert list(inspect.signature(OrtValue.ortvalue_from_numpy).parameters)[:2] == ["numpy_obj", "device_type"]
    assert inspect.ismethod(OrtValue.ortvalue_from_numpy)
