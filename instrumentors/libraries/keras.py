"""Keras: times the outermost call of a model as `forward`, and the loading of models.

- With TensorFlow, the first call of a model includes `load`, because TensorFlow traces the model.
- With JAX, a call of a `Model` only starts the computation, as [with JAX itself](jax.md). `predict` waits for it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType, ModuleType
from typing import Any

from ..instrumentor import Hook, Instrumentor, timed
from .model_common import model_call, rows_of_inputs, without_calls
from .torch.models import thread_state

BACKENDS = ("tensorflow", "jax", "torch", "numpy", "openvino")
PREDICTIONS = ("predict", "predict_on_batch")
LOADING = ("load_model", "load_weights_only", "load_model_from_hdf5", "load_weights_from_hdf5_group")
TRAINING = ("fit", "evaluate", "train_on_batch", "test_on_batch")


class KerasInstrumentor(Instrumentor):
    """Instrumentor of `keras.Model` and its trainers."""

    library = "keras"
    title = "Keras"
    stages = MappingProxyType(
        {
            "forward": "calls of a `Model`, its `predict` and its `predict_on_batch`, from 20 µs",
            "load": "calls of `load_model` and `load_weights`",
        }
    )
    facts = ("model", "batch")
    not_timed = (
        "a layer that is called outside of a model",
        "calls inside `fit` and `evaluate`, and calls with `training=True`",
    )
    tested = MappingProxyType({"keras": "3.15.1"})

    def hooks(self) -> Mapping[str, Hook]:
        return {
            "keras.src.models.model": self._model,
            # The public functions are names of many modules; these are called by all of them.
            "keras.src.saving.saving_lib": self._loading,
            "keras.src.legacy.saving.legacy_h5_format": self._loading,
            **{f"keras.src.backend.{backend}.trainer": self._trainer for backend in BACKENDS},
        }

    def _model(self, module: ModuleType) -> None:
        # The layers of PyTorch's backend are modules of PyTorch, which are timed as such.
        if module.backend.backend() != "torch":
            self.replace(module.Layer, "__call__", lambda original: _call(original, module.Model))

    def _trainer(self, module: ModuleType) -> None:
        for owner in (each for name, each in vars(module).items() if name.endswith("Trainer")):
            for name in PREDICTIONS:
                self.replace(owner, name, model_call(_name, rows_of_inputs))
            for name in TRAINING:
                self.replace(owner, name, _training)

    def _loading(self, module: ModuleType) -> None:
        for name in LOADING:
            self.replace(module, name, timed("load"))


def _training(original: Any) -> Any:
    """Wrap a method that trains, so that neither its models nor, with the backend of PyTorch, its modules are timed."""
    train = without_calls(original)

    def call(*args: Any, **options: Any) -> Any:
        busy, thread_state.inside = thread_state.inside, True
        try:
            return train(*args, **options)
        finally:
            thread_state.inside = busy

    return call


def _call(original: Any, model: type) -> Any:
    run = model_call(_name, rows_of_inputs)(original)
    package = sys.modules["keras.src.backend.common.keras_tensor"]
    is_symbolic: Callable[[Any, Any], bool] = package.any_symbolic_tensors

    def __call__(self: Any, *args: Any, **options: Any) -> Any:  # noqa: N807 - shown in tracebacks
        if not isinstance(self, model) or options.get("training") or is_symbolic(args, options) or _is_tracing():
            return original(self, *args, **options)
        return run(self, *args, **options)

    return __call__


def _is_tracing() -> bool:
    """Return whether TensorFlow or JAX traces a function, in which a call computes nothing."""
    executing = getattr(sys.modules.get("tensorflow"), "executing_eagerly", None)
    # There is no public name for it.
    is_clean = getattr(sys.modules.get("jax._src.core"), "trace_state_clean", None)
    return (executing is not None and not executing()) or (is_clean is not None and not is_clean())


def _name(model: Any) -> str:
    """Return the name of *model*; its class for a name that Keras has made, which counts the models of the process."""
    kind = type(model).__name__
    return kind if re.fullmatch(rf"{kind}(_\d+)?", model.name, re.IGNORECASE) else str(model.name)
