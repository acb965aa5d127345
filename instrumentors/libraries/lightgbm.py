"""LightGBM: times predictions as `forward`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType, ModuleType

from ..instrumentor import Hook, Instrumentor
from .model_common import model_call, without_calls

MODELS = ("LGBMModel", "LGBMClassifier", "LGBMRegressor", "LGBMRanker")


class LightGBMInstrumentor(Instrumentor):
    """Instrumentor of `lightgbm.Booster` and the models of `lightgbm.sklearn`."""

    library = "lightgbm"
    title = "LightGBM"
    stages = MappingProxyType(
        {
            "forward": "calls of `predict` of a `Booster`; `predict`, `predict_proba` and `decision_function` of the scikit-learn models; from 20 µs"
        }
    )
    facts = ("model", "batch")
    not_timed = ("the loading of a `Booster` from a file", "predictions inside `fit` and `train`")
    tested = MappingProxyType({"lightgbm": "4.7.0"})

    def hooks(self) -> Mapping[str, Hook]:
        return {"lightgbm.basic": self._basic, "lightgbm.sklearn": self._sklearn, "lightgbm.engine": self._engine}

    def _basic(self, module: ModuleType) -> None:
        self.replace(module.Booster, "predict", model_call())

    def _sklearn(self, module: ModuleType) -> None:
        for model in MODELS:
            owner = getattr(module, model)
            for name in ("predict", "predict_proba", "decision_function"):
                self.replace(owner, name, model_call())
            self.replace(owner, "fit", without_calls)

    def _engine(self, module: ModuleType) -> None:
        self.replace(module, "train", without_calls)
