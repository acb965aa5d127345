"""TensorFlow: times calls of saved models and of functions with variables as `forward`.

- A call that traces or retraces a `tf.function` counts as `load`.
- Stagelens reads only the shape of the first input.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from ..instrumentor import Hook, Instrumentor, log_failure, timed
from ..records import clock
from .model_common import folder_name, model_call, note_compilation, rows_of_inputs, without_calls


class TensorFlowInstrumentor(Instrumentor):
    """Instrumentor of `tf.function`, the functions of a SavedModel and the interpreter of TensorFlow Lite."""

    library = "tensorflow"
    title = "TensorFlow"
    stages = MappingProxyType(
        {
            "forward": "calls of a function or signature of a SavedModel, of a concrete function, of a `tf.function` that uses "
            "variables, and of `Interpreter.invoke` of TensorFlow Lite, from 20 µs",
            "load": "calls of `tf.saved_model.load`; calls that trace a `tf.function`",
        }
    )
    facts = ("model", "batch")
    not_timed = (
        "a `tf.function` without variables, which may be a preprocessing step, and operations outside of functions",
        "on a GPU, the wait for the result in `numpy()`. There, `forward` contains only the launch of the kernels.",
    )
    tested = MappingProxyType({"tensorflow-cpu": "2.21.0"})

    def hooks(self) -> Mapping[str, Hook]:
        return {
            "tensorflow.python.eager.polymorphic_function.polymorphic_function": self._functions,
            "tensorflow.python.eager.polymorphic_function.concrete_function": self._concrete,
            "tensorflow.python.saved_model.load": self._saved,
            "tensorflow.lite.python.interpreter": self._lite,
        }

    def _functions(self, module: ModuleType) -> None:
        self.replace(module.Function, "__call__", _call)

    def _concrete(self, module: ModuleType) -> None:
        self.replace(module.ConcreteFunction, "__call__", model_call(_name, rows_of_inputs))

    def _saved(self, module: ModuleType) -> None:
        # What `tf.saved_model.load`, a name of many modules, calls.
        self.replace(module, "load_partial", _loading)

    def _lite(self, module: ModuleType) -> None:
        self.replace(module.Interpreter, "invoke", model_call())


# Whether a function uses variables, by function; known as soon as the function has been traced.
_uses_variables: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()
# Names of saved models, by the functions of these.
_saved: WeakKeyDictionary[Any, str] = WeakKeyDictionary()


def _loading(original: Any) -> Any:
    load = timed("load")(original)

    def load_partial(export_dir: Any, *args: Any, **options: Any) -> Any:
        loaded = load(export_dir, *args, **options)
        try:
            root = loaded.get("root")
            functions = [*vars(root).values(), *getattr(root, "signatures", {}).values()]
            name = folder_name(export_dir)
            _saved.update(
                (each, name)
                for each in functions
                if hasattr(each, "_list_all_concrete_functions") or hasattr(each, "structured_input_signature")
            )
        except Exception:
            log_failure("naming a SavedModel")
        return loaded

    return load_partial


def _call(original: Any) -> Any:
    run = model_call(_name, rows_of_inputs)(original)
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
                note_compilation(_name(self), started)

    return __call__


def _is_model(function: Any) -> bool:
    found = _uses_variables.get(function)
    if found is None:
        try:
            functions = function._list_all_concrete_functions()  # noqa: SLF001 - there is no public name for it
            found = function in _saved or any(each.variables for each in functions)
        except Exception:
            log_failure("finding the variables of a tf.function")
            found = False
        _uses_variables[function] = found
    return found


def _name(function: Any) -> str:
    """Return the name of the SavedModel of *function*, else its own, without what TensorFlow adds to it."""
    name = getattr(function, "name", None) or getattr(function, "__name__", "")
    name = name.decode() if isinstance(name, bytes) else str(name)
    return _saved.get(function) or re.sub(r"^__inference_|_\d+$", "", name) or type(function).__name__
