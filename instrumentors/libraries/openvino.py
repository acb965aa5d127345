"""OpenVINO: times inference as `forward`, and the compilation of models as `load`.

- The model name is the name of the graph; for OpenVINO GenAI, the name of the folder or file.
- Stagelens reads only the shape of the first input.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from ..instrumentor import Hook, Instrumentor, timed
from .model_common import created_name, creation, model_call, rows_of_inputs

# Classes of OpenVINO GenAI with a `generate`.
PIPELINES = (
    "LLMPipeline",
    "VLMPipeline",
    "WhisperPipeline",
    "Text2ImagePipeline",
    "Image2ImagePipeline",
    "InpaintingPipeline",
    "Text2SpeechPipeline",
    "Text2VideoPipeline",
)


class OpenVinoInstrumentor(Instrumentor):
    """Instrumentor of `openvino.CompiledModel`, `InferRequest`, `AsyncInferQueue` and `Core`, and of pipelines of OpenVINO GenAI."""

    library = "openvino"
    title = "OpenVINO"
    stages = MappingProxyType(
        {
            "forward": "calls of a `CompiledModel`, its `infer_new_request` and `InferRequest.infer`; of asynchronous inference, "
            "the wait in `InferRequest.wait`, `wait_for` and `AsyncInferQueue.wait_all`; calls of `generate` of a pipeline of OpenVINO GenAI; from 20 µs",
            "load": "calls of `Core.compile_model`, `read_model` and `import_model`; the creation of a pipeline",
        }
    )
    facts = ("model", "batch")
    not_timed = (
        "asynchronous inference whose result a callback receives, and asynchronous inference in a plain script",
    )
    tested = MappingProxyType({"openvino": "2026.4.1", "openvino-genai": "2026.4.1.0"})

    def hooks(self) -> Mapping[str, Hook]:
        return {"openvino._ov_api": self._api, "openvino_genai.py_openvino_genai": self._genai}

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

    def _genai(self, module: ModuleType) -> None:
        for kind in PIPELINES:
            owner = getattr(module, kind, None)
            if owner is not None:
                self.replace(owner, "__init__", creation)
                for name in ("__call__", "generate"):
                    self.replace(owner, name, model_call(created_name))


# Names by compiled model, request and queue. Reading one releases the GIL, and a request would wait for it again.
_names: WeakKeyDictionary[Any, str] = WeakKeyDictionary()


def _name(model: Any) -> str:
    name = _names.get(model)
    if name is None:
        request = model[0] if hasattr(model, "wait_all") else model
        compiled = request.get_compiled_model() if hasattr(request, "get_compiled_model") else request
        name = _names[model] = str(compiled.get_property("NETWORK_NAME"))
    return name
