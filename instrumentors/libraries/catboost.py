"""CatBoost: times predictions as `forward`, and the loading of models."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType, ModuleType

from ..instrumentor import Hook, Instrumentor, timed
from .model_common import model_call, without_calls

MODELS = ("CatBoost", "CatBoostClassifier", "CatBoostRegressor", "CatBoostRanker")
PREDICTIONS = ("predict", "predict_proba", "predict_log_proba", "virtual_ensembles_predict", "calc_leaf_indexes")


class CatBoostInstrumentor(Instrumentor):
    """Instrumentor of `catboost.CatBoost` and its subclasses."""

    library = "catboost"
    title = "CatBoost"
    stages = MappingProxyType(
        {
            "forward": "calls of `predict`, `predict_proba`, `predict_log_proba`, `virtual_ensembles_predict` and `calc_leaf_indexes`, from 20 µs",
            "load": "calls of `load_model`",
        }
    )
    facts = ("model", "batch")
    not_timed = ("the creation of a `Pool` outside of a prediction", "`staged_predict`", "predictions inside `fit`")
    tested = MappingProxyType({"catboost": "1.2.10"})

    def hooks(self) -> Mapping[str, Hook]:
        return {"catboost.core": self._core}

    def _core(self, module: ModuleType) -> None:
        for model in MODELS:
            owner = getattr(module, model)
            for name in PREDICTIONS:
                self.replace(owner, name, model_call())
            self.replace(owner, "load_model", timed("load"))
            self.replace(owner, "fit", without_calls)
