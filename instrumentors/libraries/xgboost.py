"""XGBoost: times predictions as `forward`, and the loading of models.

- Copies to and from a GPU inside a prediction count as `forward`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType, ModuleType

from ..instrumentor import Hook, Instrumentor, timed
from .model_common import model_call, without_calls

MODELS = ("XGBModel", "XGBClassifier", "XGBRegressor", "XGBRanker", "XGBRFClassifier", "XGBRFRegressor")


class XGBoostInstrumentor(Instrumentor):
    """Instrumentor of `xgboost.Booster` and the models of `xgboost.sklearn`."""

    library = "xgboost"
    title = "XGBoost"
    stages = MappingProxyType(
        {
            "forward": "calls of `predict` and `inplace_predict` of a `Booster`; `predict`, `predict_proba` and `apply` of the "
            "scikit-learn models; from 20 µs",
            "load": "calls of `Booster.load_model`",
        }
    )
    facts = ("model", "batch")
    not_timed = ("the creation of a `DMatrix` outside of a prediction", "predictions inside `fit` and `train`")
    tested = MappingProxyType({"xgboost-cpu": "3.2.0"})

    def hooks(self) -> Mapping[str, Hook]:
        return {"xgboost.core": self._core, "xgboost.sklearn": self._sklearn, "xgboost.training": self._training}

    def _core(self, module: ModuleType) -> None:
        for name in ("predict", "inplace_predict"):
            self.replace(module.Booster, name, model_call())
        self.replace(module.Booster, "load_model", timed("load"))

    def _sklearn(self, module: ModuleType) -> None:
        for model in MODELS:
            owner = getattr(module, model)
            for name in ("predict", "predict_proba", "apply"):
                self.replace(owner, name, model_call())
            self.replace(owner, "fit", without_calls)

    def _training(self, module: ModuleType) -> None:
        self.replace(module, "train", without_calls)
