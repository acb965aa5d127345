"""ONNX Runtime, with the real model inside the magika wheel."""

from __future__ import annotations

import inspect
import logging
import subprocess
import sys
import threading
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import magika
import numpy as np
import onnxruntime
import pytest

from stagelens.instrumentors import recorder
from stagelens.instrumentors.instrumentor import Instrumentor
from stagelens.instrumentors.libraries import onnxruntime as module
from stagelens.instrumentors.libraries.onnxruntime import OnnxRuntimeInstrumentor

if TYPE_CHECKING:
    from conftest import Finished

INSTRUMENTOR = OnnxRuntimeInstrumentor
pytestmark = pytest.mark.usefixtures("instrumented")

MODEL = next((Path(magika.__file__).parent / "models").rglob("*.onnx"))
SESSION: Any = onnxruntime.InferenceSession.__mro__[1]
PATCHED = [
    (onnxruntime.InferenceSession, "__init__"),
    (SESSION, "run"),
    (SESSION, "run_with_ort_values"),
    (SESSION, "run_with_iobinding"),
    (SESSION, "run_async"),
]


@pytest.fixture(scope="module")
def session() -> Any:
    """Load the model once, outside any request."""
    return onnxruntime.InferenceSession(str(MODEL), providers=["CPUExecutionProvider"])


@pytest.fixture
def feed(session: Any) -> dict[str, Any]:
    """One input of the shape the model wants."""
    return {node.name: np.zeros([1, *node.shape[1:]], dtype=np.int32) for node in session.get_inputs()}


@pytest.fixture
def in_a_request(finished: Finished) -> Generator[Finished]:
    """Run the test inside a request; what it recorded is in the fixture afterwards."""
    opened = recorder.begin()
    assert opened is not None
    marks, token = opened
    finished.append((marks, marks[1], 0, "", "", 0, "internal"))
    yield finished
    recorder.end(token)


def test_magika_is_one_forward(in_a_request: Finished) -> None:
    """A real application on ONNX Runtime: creating its session is load, classifying one file is one forward."""
    classifier = magika.Magika()
    answer = classifier.identify_bytes(b"import os\nprint(os.name)\n" * 20)

    assert answer.output.label == "python"
    assert in_a_request.stages() == ["load", "forward"]
    assert in_a_request.facts() == {"@model": MODEL.parent.name, "@device": "cpu"}


def test_every_way_to_run_a_session_is_forward(in_a_request: Finished, session: Any, feed: dict[str, Any]) -> None:
    """Plain, by keyword, by OrtValue and by IOBinding: four calls, four forwards, the same result."""
    values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in feed.items()}
    binding = session.io_binding()
    for name, array in feed.items():
        binding.bind_cpu_input(name, array)
    binding.bind_output(session.get_outputs()[0].name)

    plain = session.run(None, feed)[0]
    keyword = session.run(output_names=None, input_feed=feed, run_options=None)[0]
    by_value = session.run_with_ort_values(None, values)[0].numpy()
    session.run_with_iobinding(binding)

    assert in_a_request.stages() == ["forward"] * 4
    for other in (keyword, by_value, binding.copy_outputs_to_cpu()[0]):
        np.testing.assert_array_equal(plain, other)


def test_an_asynchronous_run_lasts_until_its_callback(
    in_a_request: Finished, session: Any, feed: dict[str, Any]
) -> None:
    """The callback comes on a thread of ONNX Runtime, where only what was captured at the call is known."""
    done = threading.Event()
    received: list[Any] = []

    def callback(results: Any, data: Any, error: Any) -> None:
        received.extend((results, data, error, recorder.current.get()))
        done.set()

    session.run_async(None, feed, callback, "mine")

    assert done.wait(30)
    np.testing.assert_array_equal(received[0][0], session.run(None, feed)[0])
    assert received[1:] == ["mine", "", None]
    assert in_a_request.stages() == ["forward", "forward"]


def test_outside_a_request_nothing_is_recorded(finished: Finished, session: Any, feed: dict[str, Any]) -> None:
    """A service that warms up or works through a batch serves no request."""
    session.run(None, feed)

    assert recorder.current.get() is None
    assert list(finished) == []


def test_an_exception_is_the_librarys_own(in_a_request: Finished, session: Any) -> None:
    """What failed is recorded as well, and raises what it always raised."""
    with pytest.raises(ValueError, match=r"Required inputs"):
        session.run(None, {})

    assert in_a_request.stages() == ["forward"]


def test_our_failure_is_logged_once_and_the_result_comes_through(  # noqa: PLR0917 - fixtures
    in_a_request: Finished,
    session: Any,
    feed: dict[str, Any],
    reported: set[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A session we cannot describe is timed all the same."""

    def broken(_: Any) -> None:
        message = "ours"
        raise ZeroDivisionError(message)

    monkeypatch.setattr(module, "describe", broken)
    with caplog.at_level(logging.WARNING, "stagelens"):
        results = [session.run(None, feed) for _ in range(3)]

    assert len(results) == 3
    assert in_a_request.stages() == ["forward"] * 3
    assert len(caplog.records) == len(reported) == 1


def test_a_model_from_bytes_goes_by_the_name_of_its_graph(in_a_request: Finished, feed: dict[str, Any]) -> None:
    """There is no file to name it by."""
    session = onnxruntime.InferenceSession(MODEL.read_bytes(), providers=["CPUExecutionProvider"])
    session.run(None, feed)

    assert in_a_request.facts()["@model"] == session.get_modelmeta().graph_name


def test_no_folder_of_the_host_is_recorded(in_a_request: Finished, session: Any, feed: dict[str, Any]) -> None:
    """The path of a model may name a user or a customer."""
    session.run(None, feed)

    assert [mark for mark in in_a_request.marks() if "/" in str(mark)] == []


def test_instrumenting_twice_doubles_nothing(
    in_a_request: Finished, instrumented: Instrumentor, session: Any, feed: dict[str, Any]
) -> None:
    """A second call, on another instance, finds everything patched."""
    instrumented.instrument()
    OnnxRuntimeInstrumentor().instrument(skip_dep_check=True)
    session.run(None, feed)

    assert in_a_request.stages() == ["forward"]


def test_uninstrumenting_restores_the_very_same_objects(instrumented: Instrumentor) -> None:
    """Every attribute is again the object it was."""
    originals = [vars(owner)[name].__wrapped__ for owner, name in PATCHED]
    signatures = [inspect.signature(vars(owner)[name]) for owner, name in PATCHED]
    instrumented.uninstrument()

    assert [vars(owner)[name] for owner, name in PATCHED] == originals
    assert [inspect.signature(original) for original in originals] == signatures


@pytest.mark.parametrize(
    "order",
    [
        "import onnxruntime; stagelens.instrument()",
        "from onnxruntime import InferenceSession; stagelens.instrument(); import onnxruntime",
        "stagelens.instrument(); import onnxruntime",
        "stagelens.instrument(); import onnxruntime.capi.onnxruntime_inference_collection; import onnxruntime",
    ],
)
def test_the_order_of_imports_does_not_matter(order: str) -> None:
    """Instrumented before or after, the library is patched; instrumenting imports nothing."""
    code = f"import stagelens; {order}; print(onnxruntime.InferenceSession.run.__wrapped__.__qualname__)"

    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert answer.stdout == "Session.run\n"


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
def test_a_model_is_called_what_people_call_it(path: str, name: str) -> None:
    """The file's name, or the folder's where every file is called model; never a person's home."""
    assert module.model_name(path) == name
