"""scikit-learn: times the predictions of estimators as `forward`, and their transformations as `preprocess`.

- A `Pipeline` is one `forward`, which includes its transformations. Its model name is the class of its last step.
- Estimators of your own and of other libraries, such as imbalanced-learn and skorch, are timed too.
- Stagelens reads only the number of rows of the input.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any, Final

from ..bootstrap import LIBRARIES
from ..functions import CLOUDPICKLE_HOOKS
from ..instrumentor import Hook, Instrumentor, Probed, innermost, log_failure
from ..probes import Probe
from .model_common import class_name, model_call, preparation, subclasses, without_calls

PREDICTIONS: Final = (
    "predict predict_proba predict_log_proba predict_joint_log_proba decision_function score_samples mahalanobis "
    "kneighbors kneighbors_graph radius_neighbors radius_neighbors_graph apply decision_path sample sample_y"
)


class SklearnInstrumentor(Instrumentor):
    library = "sklearn"
    title = "scikit-learn"
    stages = {
        "forward": "calls of `predict`, `predict_proba`, `predict_log_proba`, `decision_function`, `score_samples`, "
        "`kneighbors`, `radius_neighbors`, their graphs, `apply`, `decision_path`, `sample` and `fit_predict` of an estimator "
        "or a `Pipeline`, from 20 µs",
        "preprocess": "calls of `transform` and `fit_transform` outside of a prediction, from 20 µs",
        "postprocess": "calls of `inverse_transform` outside of a prediction, from 20 µs",
    }
    facts = ("model", "batch")
    not_timed = (
        "`fit` and `partial_fit`, with the predictions and transformations inside",
        "`staged_predict` and other generators: your code runs between their steps",
        "classes that inherit from neither `BaseEstimator` nor `TransformerMixin`",
        'the loading of an estimator by `joblib` or `pickle`. To time it, use `stagelens.stage("load")`.',
    )
    tested = {"scikit-learn": "1.9.1"}

    def hooks(self) -> Mapping[str, Hook]:
        # The class of an estimator of the user is sent by value to the processes of joblib.
        return {"sklearn.base": self._base, "sklearn.utils.parallel": self._parallel, **CLOUDPICKLE_HOOKS}

    def _base(self, module: ModuleType) -> None:
        bases = (module.BaseEstimator, module.TransformerMixin)
        for owner in {subclass: None for base in bases for subclass in subclasses(base)}:
            self._estimator(owner)
        # The base classes that are called for each further estimator, also those of other libraries and of the user.
        for requester in {
            next(parent for parent in base.__mro__ if "__init_subclass__" in vars(parent)) for base in bases
        }:
            self.replace(requester, "__init_subclass__", Probed(Probe(_itself, self._created, parameters=1)))

    def _parallel(self, module: ModuleType) -> None:
        # A job of an ensemble, which may run in a thread without the context of the outer call.
        wrapper = getattr(module, "_FuncWrapper", None)
        if wrapper is not None:
            self.replace(wrapper, "__call__", without_calls)

    def _created(self, owner: type, _: object) -> None:
        try:
            self._estimator(owner)
        except Exception:
            log_failure("instrumenting an estimator of scikit-learn")

    def _estimator(self, owner: type) -> None:
        for name, make in _METHODS.items():
            # Most estimators of a family inherit a method of a mixin, which is no estimator.
            for definition in _definitions(owner, name):
                self.replace(*definition, make)


def _itself(owner: type) -> type:
    return owner


# Their instrumentors time their estimators; and `torch.nn.Module.apply`, for one, is no prediction.
_OTHERS: Final = frozenset(library.trigger.partition(".")[0] for library in LIBRARIES) - {"sklearn"}


def _definitions(owner: type, name: str) -> Iterator[tuple[Any, str]]:
    for base in owner.__mro__:
        if base.__module__.partition(".")[0] in _OTHERS:
            continue
        method = vars(base).get(name)
        # A method that only some objects have: the function inside is replaced, so that the others still lack it.
        is_conditional = type(method).__name__ == "_AvailableIfDescriptor"
        function = innermost(vars(method).get("fn") if is_conditional else method)
        if isinstance(function, FunctionType) and not inspect.isgeneratorfunction(function):
            yield (method, "fn") if is_conditional else (base, name)


def _training(observed: Probed) -> Probed:
    """Return what observes, in a request, a training whose result is used at once; elsewhere no call inside counts."""
    enter, _, _, parameters = observed.probe
    return Probed.until_end(lambda *given: enter(*given) or without_calls.probe.enter(), parameters)


def _name(estimator: Any) -> str:
    match getattr(estimator, "steps", None):
        case [*_, [_, last, *_]]:
            return class_name(last)
        case _:
            return class_name(estimator)


_METHODS: Final[Mapping[str, Probed]] = {
    **dict.fromkeys(PREDICTIONS.split(), model_call(_name)),
    "transform": preparation("preprocess"),
    "inverse_transform": preparation("postprocess"),
    "fit_predict": _training(model_call(_name, is_request=False)),
    "fit_transform": _training(preparation("preprocess")),
    "fit": without_calls,
    "partial_fit": without_calls,
}
