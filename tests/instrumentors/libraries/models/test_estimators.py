"""Every method of every estimator of scikit-learn that gives a result is one stage."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin, clone
from sklearn.feature_selection import SelectKBest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.svm import LinearSVC
from sklearn.utils import all_estimators
from sklearn.utils._test_common.instance_generator import (
    _construct_instances,  # pyright: ignore[reportPrivateUsage] - as its own tests
)
from sklearn.utils.estimator_checks import (
    _enforce_estimator_tags_X,  # pyright: ignore[reportPrivateUsage]
    _enforce_estimator_tags_y,  # pyright: ignore[reportPrivateUsage]
)

from stagelens.instrumentors import instrumentor, recorder
from stagelens.instrumentors.libraries.sklearn import PREDICTIONS, SklearnInstrumentor
from stagelens.instrumentors.request_marks import read_marks

pytestmark = pytest.mark.stacks

STAGES = {
    **dict.fromkeys((*PREDICTIONS.split(), "fit_predict"), "forward"),
    **dict.fromkeys(("transform", "fit_transform"), "preprocess"),
    "inverse_transform": "postprocess",
}
# Their training takes a second or more: their methods are called without it, and fail after they have begun.
SLOW = {"TSNE", "RFECV", "SequentialFeatureSelector", "HistGradientBoostingClassifier", "HistGradientBoostingRegressor"}
X = np.random.default_rng(0).normal(size=(40, 4))
Y = np.arange(40) % 2


@pytest.fixture(autouse=True)
def instrumented(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(instrumentor, "MIN_CALL_NS", 0)
    SklearnInstrumentor().instrument()
    yield
    SklearnInstrumentor().uninstrument()


def _stages(method: Any, *given: Any) -> list[str]:
    marks, token = recorder.begin() or pytest.fail("not recorded")
    try:
        method(*given)
    except Exception:  # noqa: BLE001, S110 - some take other data; a failed call is recorded, too
        pass
    finally:
        recorder.end(token)
    return [stage for stage, _, _ in read_marks(marks).intervals]


def _estimators() -> Iterator[tuple[str, Any, Any, Any]]:
    for name, kind in all_estimators():
        for estimator in list(_construct_instances(kind))[:1] if name != "FrozenEstimator" else ():
            table, labels = _enforce_estimator_tags_X(estimator, X), _enforce_estimator_tags_y(estimator, Y)
            try:
                if name not in SLOW:
                    estimator.fit(table, labels)
            except Exception:  # noqa: BLE001, S110 - see `_stages`
                pass
            yield name, estimator, table, labels


@pytest.mark.filterwarnings("ignore")
def test_every_method_of_every_estimator_is_one_stage() -> None:
    wrong: dict[str, list[str]] = {}
    called = 0
    for name, estimator, table, labels in _estimators():
        for method, stage in STAGES.items():
            if not hasattr(estimator, method) or (name in SLOW and method.startswith("fit")):
                continue
            given = (table, labels)[name.startswith("Label") :] if method.startswith("fit") else (table,)
            called += 1
            if (stages := _stages(getattr(estimator, method), *given)) != [stage]:
                wrong[f"{name}.{method}"] = stages

    assert wrong == {}
    assert called > 450


class Shared:
    """A mixin of the user that is no estimator."""

    def predict(self, table: Any) -> Any:
        return table[:, 0]


def test_estimators_that_are_defined_later_are_timed() -> None:
    class Late(Shared, ClassifierMixin, BaseEstimator):
        pass

    class Columns(TransformerMixin):
        def transform(self, table: Any) -> Any:
            return table[:, :2]

    assert _stages(Late().predict, X) == ["forward"]
    assert _stages(Columns().transform, X) == ["preprocess"]


def test_estimators_stay_what_they_are() -> None:
    selected = make_pipeline(SelectKBest(k=2), LinearSVC()).fit(X, Y)

    assert LogisticRegression.predict is LinearSVC.predict
    assert not hasattr(selected, "predict_proba")
    assert hasattr(selected, "decision_function")
    copy = pickle.loads(pickle.dumps(selected))  # noqa: S301
    again: Any = clone(selected)
    assert np.array_equal(copy.predict(X), again.fit(X, Y).predict(X))
    SklearnInstrumentor().uninstrument()
    assert _stages(selected.predict, X) == []


def test_an_estimator_of_a_script_is_sent_to_other_processes(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("""
import sys, numpy as np, stagelens
from stagelens.instrumentors import recorder
stagelens.instrument()
recorder.background.wake_at = sys.maxsize
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.cluster import KMeans
from sklearn.model_selection import cross_val_predict
class Mine(ClassifierMixin, BaseEstimator):
    def fit(self, X, y=None):
        self.classes_ = np.unique(y)
        return self
    def predict(self, X):
        return np.ones(len(X))
x = np.arange(80.0).reshape(40, 2)
print(cross_val_predict(Mine(), x, x[:, 0] > 30, n_jobs=2, cv=4).sum())
KMeans(2, n_init=1).fit_predict(x)
print(len(recorder.pending))
""")
    done = subprocess.run([sys.executable, "script.py"], capture_output=True, text=True, check=False, cwd=tmp_path)

    assert (done.stdout.split(), done.returncode) == (["40.0", "0"], 0), done.stderr
