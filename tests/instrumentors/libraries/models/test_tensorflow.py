"""TensorFlow and Keras: tracing, training, and functions that are no models."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from stagelens.instrumentors.api import request
from stagelens.instrumentors.libraries.tensorflow import KerasInstrumentor, TensorFlowInstrumentor
from tests.instrumentors.libraries.drivers import instrumenting
from tests.instrumentors.libraries.models.beside import beside

if TYPE_CHECKING:
    from conftest import Finished

# NumPy warns of the variables of TensorFlow.
pytestmark = [pytest.mark.soak, pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")]
X = np.ones((64, 8), np.float32)


@pytest.fixture(scope="module")
def tensorflow() -> Any:
    if "keras" in sys.modules:
        pytest.skip("Keras chooses one backend in a process")
    return beside("tensorflow", "tensorflow")


@pytest.fixture(autouse=True)
def instrumented(tensorflow: Any) -> Generator[None]:  # noqa: ARG001 - imported before
    with instrumenting(TensorFlowInstrumentor(), KerasInstrumentor()):
        yield


def network(tensorflow: Any) -> Any:
    keras = tensorflow.keras
    inner = keras.Sequential([keras.Input((8,)), keras.layers.Dense(2)])
    inputs = keras.Input((8,))
    return keras.Model(inputs, inner(inputs))


def test_the_first_call_is_a_load(tensorflow: Any, finished: Finished) -> None:
    with request("predict"):
        network(tensorflow).predict_on_batch(X)

    assert finished.stages() == ["load", "forward"]
    assert finished.facts() == {"@model": "Functional", "@batch": len(X)}


def test_a_function_with_variables_is_a_model(tensorflow: Any, finished: Finished) -> None:
    model = network(tensorflow)
    scale = tensorflow.function(lambda x: 2 * x)
    classify = tensorflow.function(model)
    with request("predict"):
        classify(scale(X))
    assert finished.stages() == ["load", "load"]
    finished.clear()

    with request("predict"):
        classify(scale(X))
    assert finished.stages() == ["forward"]


def test_a_concrete_function_is_a_model(tensorflow: Any, finished: Finished) -> None:
    model = network(tensorflow)

    @tensorflow.function
    def classify(x: Any) -> Any:
        return model(x)

    concrete = classify.get_concrete_function(tensorflow.constant(X))
    with request("predict"):
        concrete(tensorflow.constant(X))

    assert finished.stages() == ["forward"]
    assert finished.facts() == {"@model": "classify", "@batch": len(X)}


def test_saved_models_are_loaded(tensorflow: Any, finished: Finished, tmp_path: Path) -> None:
    network(tensorflow).save(tmp_path / "model.keras")
    with request("load"):
        loaded = tensorflow.keras.models.load_model(tmp_path / "model.keras")
    assert set(finished.stages()) == {"load"}
    finished.clear()

    loaded.export(tmp_path / "resnet", verbose=False)
    with request("load"):
        signature = tensorflow.saved_model.load(tmp_path / "resnet").signatures["serving_default"]
    assert set(finished.stages()) == {"load"}
    finished.clear()

    (name,) = signature.structured_input_signature[1]
    with request("predict"):
        signature(**{name: tensorflow.constant(X)})
    assert finished.stages() == ["forward"]
    assert finished.facts() == {"@model": "resnet", "@batch": len(X)}


def test_a_saved_model_behaves_unchanged(tensorflow: Any, finished: Finished, tmp_path: Path) -> None:
    network(tensorflow).export(tmp_path / "resnet", verbose=False)
    loaded = tensorflow.saved_model.load(tmp_path / "resnet")
    loaded.serve(X)
    with request("predict"):
        with pytest.raises(Exception) as failed:  # noqa: PT011 - the class is one of TensorFlow
            loaded.serve(object())
        inside = loaded.serve(X)
    assert "stagelens" not in type(failed.value).__module__
    assert finished.stages()[-1] == "forward"
    finished.clear()

    TensorFlowInstrumentor().uninstrument()
    with request("predict"):
        outside = loaded.serve(X)
    assert np.array_equal(inside, outside)
    assert finished.stages() == []


def test_a_script_counts_predictions_and_no_training(tensorflow: Any, script: Finished) -> None:
    model = network(tensorflow)
    model.compile(loss="mse")
    model.fit(X, X[:, :2], validation_split=0.5, verbose=0)
    tensorflow.data.Dataset.from_tensor_slices(X).batch(32).map(model)
    model(X, training=True)
    assert not script

    model.predict(X, verbose=0)
    model(X)
    assert [record[3] for record in script] == ["Functional", "Functional"]


def test_an_interpreter_of_tensorflow_lite_is_a_model(tensorflow: Any, finished: Finished) -> None:
    keras = tensorflow.keras
    model = keras.Sequential([keras.Input((512,), batch_size=64), keras.layers.Dense(512)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        interpreter = tensorflow.lite.Interpreter(
            model_content=tensorflow.lite.TFLiteConverter.from_keras_model(model).convert()
        )
    interpreter.allocate_tensors()
    with request("predict"):
        interpreter.invoke()

    assert finished.stages() == ["forward"]
    assert finished.facts() == {"@model": "Interpreter"}
