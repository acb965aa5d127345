"""TensorFlow, and Keras, whose models run in TensorFlow, JAX or PyTorch.

The docstring of a class is the text of its page in the documentation.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from ..instrumentor import Hook, Instrumentor, Target, log_failure, timed
from ..records import clock
from .model_common import folder_name, model_call, note_compilation, rows_of_inputs, without_calls
from .torch.models import thread_state

# Of Keras: its backends, and its functions by what they do.
_BACKENDS = ("tensorflow", "jax", "torch", "numpy", "openvino")
_PREDICTIONS = ("predict", "predict_on_batch")
_LOADERS = ("saving.saving_lib", "legacy.saving.legacy_h5_format")
_LOADING = "load_model load_weights_only load_model_from_hdf5 load_weights_from_hdf5_group"
_TRAINING = ("fit", "evaluate", "train_on_batch", "test_on_batch")
# Whether a function uses variables, by function; known as soon as the function has been traced.
_uses_variables: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()
# Names of saved models, by the functions of these.
_saved_names: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
_EAGER = "tensorflow.python.eager.polymorphic_function"


class KerasInstrumentor(Instrumentor):
    """Keras: times the outermost call of a model as `forward`, and the loading of models.

    - With TensorFlow, the first call of a model includes `load`, because TensorFlow traces the model.
    - With JAX, a call of a `Model` only starts the computation, as [with JAX itself](jax.md). `predict` waits for it.
    """

    library = "keras"
    title = "Keras"
    stages = {
        "forward": "calls of a `Model`, its `predict` and its `predict_on_batch`, from 20 µs",
        "load": "calls of `load_model` and `load_weights`",
    }
    facts = ("model", "batch")
    not_timed = (
        "a layer that is called outside of a model",
        "calls inside `fit` and `evaluate`, and calls with `training=True`",
    )
    tested = {"keras": "3.15.1"}

    def targets(self) -> Iterable[Target]:
        # The public functions are names of many modules; these are called by all of them.
        return [(f"keras.src.{module}", timed("load"), _LOADING) for module in _LOADERS]

    def hooks(self) -> Mapping[str, Hook]:
        trainers = dict.fromkeys((f"keras.src.backend.{backend}.trainer" for backend in _BACKENDS), self._trainer)
        return {"keras.src.models.model": self._model, **super().hooks(), **trainers}

    def _model(self, module: ModuleType) -> None:
        # The layers of PyTorch's backend are modules of PyTorch, which are timed as such.
        if module.backend.backend() != "torch":
            self.replace(module.Layer, "__call__", lambda original: _keras_call(original, module.Model))

    def _trainer(self, module: ModuleType) -> None:
        for owner in (trainer for name, trainer in vars(module).items() if name.endswith("Trainer")):
            for name in _PREDICTIONS:
                self.replace(owner, name, model_call(_keras_name, rows_of_inputs))
            for name in _TRAINING:
                self.replace(owner, name, _training)


class TensorFlowInstrumentor(Instrumentor):
    """TensorFlow: times calls of saved models and of functions with variables as `forward`.

    - A call that traces or retraces a `tf.function` counts as `load`.
    - Stagelens reads only the shape of the first input.
    """

    library = "tensorflow"
    title = "TensorFlow"
    stages = {
        "forward": "calls of a function or signature of a SavedModel, of a concrete function, of a `tf.function` that uses "
        "variables, and of `Interpreter.invoke` of TensorFlow Lite, from 20 µs",
        "load": "calls of `tf.saved_model.load`; calls that trace a `tf.function`",
    }
    facts = ("model", "batch")
    not_timed = (
        "a `tf.function` without variables, which may be a preprocessing step, and operations outside of functions",
        "on a GPU, the wait for the result in `numpy()`. There, `forward` contains only the launch of the kernels.",
    )
    tested = {"tensorflow-cpu": "2.21.0"}

    def targets(self) -> Iterable[Target]:
        return (
            (f"{_EAGER}.polymorphic_function:Function", _function_call, "__call__"),
            (f"{_EAGER}.concrete_function:ConcreteFunction", model_call(_function_name, rows_of_inputs), "__call__"),
            # What `tf.saved_model.load`, a name of many modules, calls.
            ("tensorflow.python.saved_model.load", _loading, "load_partial"),
            ("tensorflow.lite.python.interpreter:Interpreter", model_call(), "invoke"),
        )


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


def _keras_call(original: Any, model: type) -> Any:
    run = model_call(_keras_name, rows_of_inputs)(original)
    package = sys.modules["keras.src.backend.common.keras_tensor"]
    is_symbolic: Callable[[Any, Any], bool] = package.any_symbolic_tensors

    def __call__(self: Any, *args: Any, **options: Any) -> Any:  # noqa: N807 - shown in tracebacks
        if not isinstance(self, model) or options.get("training") or is_symbolic(args, options) or _is_tracing():
            return original(self, *args, **options)
        return run(self, *args, **options)

    return __call__


def _is_tracing() -> bool:
    executing = getattr(sys.modules.get("tensorflow"), "executing_eagerly", None)
    # There is no public name for it.
    is_clean = getattr(sys.modules.get("jax._src.core"), "trace_state_clean", None)
    return (executing is not None and not executing()) or (is_clean is not None and not is_clean())


def _keras_name(model: Any) -> str:
    """Return the name of *model*; its class for a name that Keras has made, which counts the models of the process."""
    kind = type(model).__name__
    return kind if re.fullmatch(rf"{kind}(_\d+)?", model.name, re.IGNORECASE) else str(model.name)


def _loading(original: Any) -> Any:
    load = timed("load")(original)

    def load_partial(export_dir: Any, *args: Any, **options: Any) -> Any:
        loaded = load(export_dir, *args, **options)
        try:
            root = loaded.get("root")
            functions = [*vars(root).values(), *getattr(root, "signatures", {}).values()]
            name = folder_name(export_dir)
            _saved_names.update(
                (function, name)
                for function in functions
                if hasattr(function, "_list_all_concrete_functions") or hasattr(function, "structured_input_signature")
            )
        except Exception:
            log_failure("naming a SavedModel")
        return loaded

    return load_partial


def _function_call(original: Any) -> Any:
    run = model_call(_function_name, rows_of_inputs)(original)
    # What runs while a function is traced computes nothing.
    trace = without_calls(original)

    def __call__(self: Any, *args: Any, **kwds: Any) -> Any:  # noqa: N807 - shown in tracebacks
        traces = self.experimental_get_tracing_count()
        call = trace if not traces else run if _is_model(self) else original
        started = clock()
        try:
            return call(self, *args, **kwds)
        finally:
            if self.experimental_get_tracing_count() != traces:
                note_compilation(_function_name(self), started)

    return __call__


def _is_model(function: Any) -> bool:
    is_model = _uses_variables.get(function)
    if is_model is None:
        try:
            functions = function._list_all_concrete_functions()  # noqa: SLF001 - there is no public name for it
            is_model = function in _saved_names or any(concrete.variables for concrete in functions)
        except Exception:
            log_failure("finding the variables of a tf.function")
            is_model = False
        _uses_variables[function] = is_model
    return is_model


def _function_name(function: Any) -> str:
    name = getattr(function, "name", None) or getattr(function, "__name__", "")
    name = name.decode() if isinstance(name, bytes) else str(name)
    return _saved_names.get(function) or re.sub(r"^__inference_|_\d+$", "", name) or type(function).__name__
