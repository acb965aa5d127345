"""OpenVINO: times inference as `forward`, and the compilation of models as `load`.

- The model name is the name of the graph.
- Stagelens reads only the shape of the first input.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType, ModuleType
from typing import Any

from ..instrumentor import Hook, Instrumentor, timed
from .model_common import model_call, rows_of_inputs


class OpenVinoInstrumentor(Instrumentor):
    """Instrumentor of `openvino.CompiledModel`, `InferRequest`, `AsyncInferQueue` and `Core`."""

    library = "openvino"
    title = "OpenVINO"
    stages = MappingProxyType(
        {
            "forward": "calls of a `CompiledModel`, its `infer_new_request` and `InferRequest.infer`; of asynchronous inference, "
            "the wait in `InferRequest.wait`, `wait_for` and `AsyncInferQueue.wait_all`; from 20 µs",
            "load": "calls of `Core.compile_model`, `read_model` and `import_model`",
        }
    )
    facts = ("model", "batch")
    not_timed = (
        "asynchronous inference whose result a callback receives, and asynchronous inference in a plain script",
    )
    tested = MappingProxyType({"openvino": "2026.4.1"})

    def hooks(self) -> Mapping[str, Hook]:
        """Return the patch functions by module."""
        return {"openvino._ov_api": self._api}

    def _api(self, module: ModuleType) -> None:
        for name in ("__call__", "infer_new_request"):
            self.replace(module.CompiledModel, name, model_call(_name, rows_of_inputs))
        self.replace(module.InferRequest, "infer", model_call(_name, rows_of_inputs))
        # The base class in C++ has the methods that wait.
        for owner in (*module.InferRequest.__mro__, *module.AsyncInferQueue.__mro__):
            for name in ("wait", "wait_for", "wait_all"):
                self.replace(owner, name, model_call(_name, is_request=False))
        for name in ("compile_model", "read_model", "import_model"):
            self.replace(module.Core, name, timed("load"))


def _name(model: Any) -> str:
    """Return the name of *model*, a compiled model, one of its requests or a queue of these."""
    request = model[0] if hasattr(model, "wait_all") else model
    compiled = request.get_compiled_model() if hasattr(request, "get_compiled_model") else request
    return str(compiled.get_property("NETWORK_NAME"))
