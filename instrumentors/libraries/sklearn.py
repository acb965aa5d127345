"""scikit-learn: times the predictions of estimators as `forward`, and their transformations as `preprocess`.

- A `Pipeline` is one `forward`, which includes its transformations. Its model name is the class of its last step.
- Stagelens reads only the number of rows of the input.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import FunctionType, MappingProxyType, ModuleType
from typing import Any

from ..instrumentor import Hook, Instrumentor, log_failure
from .model_common import class_name, model_call, preparation, subclasses, without_calls

PREDICTIONS = ("predict", "predict_proba", "predict_log_proba", "decision_function", "score_samples", "kneighbors")
TRAINING = ("fit", "fit_transform", "fit_predict", "partial_fit")


class SklearnInstrumentor(Instrumentor):
    """Instrumentor of `sklearn.base.BaseEstimator` and its subclasses."""

    library = "sklearn"
    title = "scikit-learn"
    stages = MappingProxyType(
        {
            "forward": "calls of `predict`, `predict_proba`, `predict_log_proba`, `decision_function`, `score_samples` and "
            "`kneighbors` of an estimator or a `Pipeline`, from 20 µs",
            "preprocess": "calls of `transform` outside of a prediction, from 20 µs",
        }
    )
    facts = ("model", "batch")
    not_timed = (
        "predictions and transformations inside `fit`",
        'the loading of an estimator by `joblib` or `pickle`. To time it, use `stagelens.stage("load")`.',
    )
    tested = MappingProxyType({"scikit-learn": "1.9.1"})

    def hooks(self) -> Mapping[str, Hook]:
        return {"sklearn.base": self._base, "sklearn.utils.parallel": self._parallel}

    def _base(self, module: ModuleType) -> None:
        for owner in subclasses(module.BaseEstimator):
            self._estimator(owner)
        # The base class that is called for each further estimator, also those of other libraries and of the user.
        requester = next(owner for owner in module.BaseEstimator.__mro__ if "__init_subclass__" in vars(owner))
        self.replace(requester, "__init_subclass__", self._creating)

    def _parallel(self, module: ModuleType) -> None:
        # A job of an ensemble, which may run in a thread without the context of the outer call.
        wrapper = getattr(module, "_FuncWrapper", None)
        if wrapper is not None:
            self.replace(wrapper, "__call__", without_calls)

    def _creating(self, original: Any) -> Any:
        def __init_subclass__(cls: type, **options: Any) -> None:  # noqa: N807 - shown in tracebacks
            original(cls, **options)
            try:
                self._estimator(cls)
            except Exception:
                log_failure("instrumenting an estimator of scikit-learn")

        return __init_subclass__

    def _estimator(self, owner: type) -> None:
        for names, make in (
            (PREDICTIONS, model_call(_name)),
            (("transform",), preparation),
            (TRAINING, without_calls),
        ):
            for name in names:
                method = vars(owner).get(name)
                if isinstance(method, FunctionType):
                    self.replace(owner, name, make)
                elif type(method).__name__ == "_AvailableIfDescriptor":
                    # A method that only some objects have: the function inside is replaced, so that the others still lack it.
                    self.replace(method, "fn", make)


def _name(estimator: Any) -> str:
    match getattr(estimator, "steps", None):
        case [*_, [_, last, *_]]:
            return class_name(last)
        case _:
            return class_name(estimator)
