"""Libraries of gradient boosting: XGBoost, LightGBM and CatBoost.

The docstring of a class is the text of its page in the documentation.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

from ..instrumentor import Hook, Instrumentor, timed
from .model_common import model_call, without_calls


class _BoostingInstrumentor(Instrumentor):
    facts = ("model", "batch")

    def _models(self, module: ModuleType, models: str, predictions: str) -> None:
        for owner in (getattr(module, model) for model in models.split()):
            for name in predictions.split():
                self.replace(owner, name, model_call())
            self.replace(owner, "load_model", timed("load"))
            self.replace(owner, "fit", without_calls)

    def _train(self, module: ModuleType) -> None:
        self.replace(module, "train", without_calls)


class XGBoostInstrumentor(_BoostingInstrumentor):
    """XGBoost: times predictions as `forward`, and the loading of models.

    - Copies to and from a GPU inside a prediction count as `forward`.
    """

    library = "xgboost"
    title = "XGBoost"
    stages = {
        "forward": "calls of `predict` and `inplace_predict` of a `Booster`; `predict`, `predict_proba` and `apply` of the "
        "scikit-learn models; from 20 µs",
        "load": "calls of `load_model`",
    }
    not_timed = ("the creation of a `DMatrix` outside of a prediction", "predictions inside `fit` and `train`")
    tested = {"xgboost-cpu": "3.2.0"}

    def hooks(self) -> Mapping[str, Hook]:
        return {"xgboost.core": self._core, "xgboost.sklearn": self._sklearn, "xgboost.training": self._train}

    def _core(self, module: ModuleType) -> None:
        self._models(module, "Booster", "predict inplace_predict")

    def _sklearn(self, module: ModuleType) -> None:
        models = "XGBModel XGBClassifier XGBRegressor XGBRanker XGBRFClassifier XGBRFRegressor"
        self._models(module, models, "predict predict_proba apply")


class LightGBMInstrumentor(_BoostingInstrumentor):
    """LightGBM: times predictions as `forward`."""

    library = "lightgbm"
    title = "LightGBM"
    stages = {
        "forward": "calls of `predict` of a `Booster`; `predict`, `predict_proba` and `decision_function` of the scikit-learn "
        "models; from 20 µs"
    }
    not_timed = ("the loading of a `Booster` from a file", "predictions inside `fit` and `train`")
    tested = {"lightgbm": "4.7.0"}

    def hooks(self) -> Mapping[str, Hook]:
        return {"lightgbm.basic": self._basic, "lightgbm.sklearn": self._sklearn, "lightgbm.engine": self._train}

    def _basic(self, module: ModuleType) -> None:
        self._models(module, "Booster", "predict")

    def _sklearn(self, module: ModuleType) -> None:
        models = "LGBMModel LGBMClassifier LGBMRegressor LGBMRanker"
        self._models(module, models, "predict predict_proba decision_function")


class CatBoostInstrumentor(_BoostingInstrumentor):
    """CatBoost: times predictions as `forward`, and the loading of models."""

    library = "catboost"
    title = "CatBoost"
    stages = {
        "forward": "calls of `predict`, `predict_proba`, `predict_log_proba`, `virtual_ensembles_predict` and "
        "`calc_leaf_indexes`, from 20 µs",
        "load": "calls of `load_model`",
    }
    not_timed = ("the creation of a `Pool` outside of a prediction", "`staged_predict`", "predictions inside `fit`")
    tested = {"catboost": "1.2.10"}

    def hooks(self) -> Mapping[str, Hook]:
        return {"catboost.core": self._core}

    def _core(self, module: ModuleType) -> None:
        models = "CatBoost CatBoostClassifier CatBoostRegressor CatBoostRanker"
        predictions = "predict predict_proba predict_log_proba virtual_ensembles_predict calc_leaf_indexes"
        self._models(module, models, predictions)
