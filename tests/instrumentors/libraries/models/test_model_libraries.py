"""Libraries of models, each with a small model that is made on the spot."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Generator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from stagelens.instrumentors.api import request
from stagelens.instrumentors.instrumentor import Instrumentor
from stagelens.instrumentors.libraries.catalog import CatBoostInstrumentor, LightGBMInstrumentor, XGBoostInstrumentor
from stagelens.instrumentors.libraries.inference_runtimes import OpenVinoInstrumentor
from stagelens.instrumentors.libraries.sklearn import SklearnInstrumentor
from stagelens.instrumentors.libraries.tensorflow import KerasInstrumentor
from tests.instrumentors.libraries.drivers import instrumenting
from tests.instrumentors.libraries.models.beside import beside

if TYPE_CHECKING:
    from conftest import Finished

pytestmark = pytest.mark.stacks

# Large enough that every prediction takes longer than 20 µs.
X = np.random.default_rng(0).normal(size=(2000, 8)).astype(np.float32)
Y = (X[:, 0] + X[:, 1] > 0).astype(int)


class Model(NamedTuple):
    """A trained model, the method that predicts, and the name to be recorded."""

    instrumentor: type[Instrumentor]
    trained: Any
    method: str
    name: str

    def predict(self, table: Any) -> Any:
        result = getattr(self.trained, self.method)(table)
        return next(iter(result.values())) if isinstance(result, Mapping) else result


def _pipeline() -> Model:
    model: Any = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, Y)
    return Model(SklearnInstrumentor, model, "predict_proba", "LogisticRegression")


def _forest() -> Model:
    model: Any = RandomForestClassifier(n_estimators=5, random_state=0).fit(X, Y)
    return Model(SklearnInstrumentor, model, "predict", "RandomForestClassifier")


def _xgboost() -> Model:
    model = beside("models", "xgboost").XGBClassifier(n_estimators=5).fit(X, Y)
    return Model(XGBoostInstrumentor, model, "predict_proba", "XGBClassifier")


def _booster() -> Model:
    library = beside("models", "xgboost")
    model = library.train({}, library.DMatrix(X, Y), 5)
    return Model(XGBoostInstrumentor, model, "inplace_predict", "Booster")


def _lightgbm() -> Model:
    model = beside("models", "lightgbm").LGBMClassifier(n_estimators=5, verbose=-1).fit(X, Y)
    return Model(LightGBMInstrumentor, model.booster_, "predict", "Booster")


def _catboost() -> Model:
    options = {"iterations": 5, "verbose": False, "allow_writing_files": False}
    model = beside("models", "catboost").CatBoostClassifier(**options).fit(X, Y)
    return Model(CatBoostInstrumentor, model, "predict_proba", "CatBoostClassifier")


@cache
def _network() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        # TensorFlow, which is the default, is large: test_tensorflow.py has it.
        patch.setenv("KERAS_BACKEND", "jax")
        keras = beside("models", "keras")
    inner = keras.Sequential([keras.Input((8,)), keras.layers.Dense(64), keras.layers.Dense(2)])
    inputs = keras.Input((8,))
    network = keras.Model(inputs, inner(inputs), name="network")
    network.predict(X, verbose=0)
    return network


def _keras() -> Model:
    return Model(KerasInstrumentor, _network(), "__call__", "network")


def _keras_predict() -> Model:
    return Model(KerasInstrumentor, _network(), "predict_on_batch", "network")


@cache
def _compiled(name: str) -> Any:
    openvino = beside("models", "openvino")
    x = openvino.opset13.parameter([-1, 8], np.float32)
    product = openvino.opset13.matmul(x, np.ones((8, 256), np.float32), False, False)
    return openvino.Core().compile_model(openvino.Model([product], [x], name), "CPU")


def _openvino() -> Model:
    return Model(OpenVinoInstrumentor, _compiled("graph"), "__call__", "graph")


MAKERS = [_pipeline, _forest, _xgboost, _booster, _lightgbm, _catboost, _keras, _keras_predict, _openvino]


@cache
def _made(make: Callable[[], Model]) -> Model:
    return make()


@pytest.fixture(params=MAKERS, ids=lambda make: make.__name__.strip("_"))
def model(request: pytest.FixtureRequest) -> Generator[Model]:
    made = _made(request.param)
    with instrumenting(made.instrumentor()):
        yield made


def test_a_prediction_is_one_forward_with_the_same_result(model: Model, finished: Finished) -> None:
    before = model.predict(X)
    with request("predict"):
        inside = model.predict(X)

    assert np.array_equal(before, inside)
    assert finished.stages() == ["forward"]
    assert finished.facts() == {"@model": model.name, "@batch": len(X)}


def test_a_transformation_is_a_preprocess(finished: Finished) -> None:
    scaler = StandardScaler().fit(X)
    scalers, model = make_pipeline(StandardScaler()).fit(X), _pipeline().trained
    before = scaler.transform(X)
    with instrumenting(SklearnInstrumentor()), request("predict"):
        inside = scaler.transform(X)
        scalers.transform(X)
        model.predict(X)

    assert np.array_equal(before, inside)
    assert finished.stages() == ["preprocess", "preprocess", "forward"]


def test_the_wait_for_openvino_is_a_forward(finished: Finished) -> None:
    compiled, openvino = _compiled("graph"), beside("models", "openvino")
    instrumentor = OpenVinoInstrumentor()
    instrumentor.instrument()
    infer_request, queue = compiled.create_infer_request(), openvino.AsyncInferQueue(compiled, 1)
    for start, wait in (
        (infer_request.start_async, infer_request.wait),
        (infer_request.start_async, lambda: infer_request.wait_for(60_000)),
        (queue.start_async, queue.wait_all),
    ):
        finished.clear()
        while not finished or not finished.stages():
            finished.clear()
            with request("predict"):
                start(X)
                wait()
        assert set(finished.stages()) == {"forward"}
        assert finished.facts() == {"@model": "graph"}
    instrumentor.uninstrument()


def test_the_name_of_a_model_of_openvino_is_read_once(finished: Finished) -> None:
    instrumentor, read = OpenVinoInstrumentor(), list[str]()
    instrumentor.instrument()

    class Model(beside("models", "openvino").CompiledModel):
        def get_property(self, name: str) -> Any:
            read.append(name)
            return super().get_property(name)

    model = Model(_compiled("graph"))
    for _ in range(3):
        finished.clear()
        with request("predict"):
            model(X)
        assert finished.facts() == {"@model": "graph", "@batch": len(X)}
    instrumentor.uninstrument()

    assert read == ["NETWORK_NAME"]


def test_a_script_counts_predictions_and_no_training(tmp_path: Path) -> None:
    code = """
import sys, stagelens
from stagelens.instrumentors import recorder
stagelens.instrument()
recorder.background.wake_at = sys.maxsize
import numpy as np
from sklearn.base import BaseEstimator
from sklearn.ensemble import AdaBoostClassifier, RandomForestClassifier
from sklearn.pipeline import Pipeline
class Mine(BaseEstimator):
    steps = 3
    def fit(self, X, y=None): return self
    def predict(self, X): return X
x = np.arange(80.0).reshape(40, 2)
model = AdaBoostClassifier(n_estimators=3).fit(x, x[:, 0] > 30)
model.predict(x)
RandomForestClassifier(n_estimators=4, n_jobs=2).fit(x, x[:, 0] > 30).predict(x)
Mine().fit(x).predict(x)
assert not hasattr(Pipeline([("mine", Mine())]), "predict_proba")
print(*(record[3] for record in recorder.pending))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path, env=dict(os.environ)
    )

    assert done.stdout.split() == ["AdaBoostClassifier", "RandomForestClassifier", "Mine"]
    # A number of steps, as of a forecast, is no list of estimators.
    assert "Please report" not in done.stderr
