"""Diffusers: times pipelines as `forward`, with their image processors and tokenizers as stages of their own.

- `forward` is the rest of a pipeline: its models, its scheduler, and the code between them.
- Stagelens does not read prompts or images.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

from ..instrumentor import Hook, Instrumentor, log_failure, timed_call
from . import transformers
from .model_common import class_name, model_call, subclasses


class DiffusersInstrumentor(Instrumentor):
    library = "diffusers"
    title = "Diffusers"
    stages = {
        "forward": "calls of a `DiffusionPipeline`, without the other stages",
        "preprocess": "calls of `preprocess` and `preprocess_video` of an image processor, from 20 µs",
        "postprocess": "calls of `postprocess` and `postprocess_video` of an image processor, and of `numpy_to_pil`, from 20 µs",
        "load": "calls of `from_pretrained` of a pipeline; the first call of each of its models",
    }
    facts = ("model", "batch")
    not_timed = ("modular pipelines. The calls of their models count as `forward`.",)
    tested = {"diffusers": "0.42.1"}

    def hooks(self) -> Mapping[str, Hook]:
        return {
            "diffusers.pipelines.pipeline_utils": self._pipelines,
            "diffusers.image_processor": self._processors,
            "diffusers.video_processor": self._processors,
        }

    def _pipelines(self, module: ModuleType) -> None:
        base = module.DiffusionPipeline
        self.replace(base, "from_pretrained", transformers.wrap_load)
        self.replace(base, "numpy_to_pil", timed_call("postprocess"))
        # Each class has a `__call__` of its own. Its objects call this method when they are created.
        self.replace(base, "register_modules", self._registering)
        for owner in subclasses(base):
            self.replace(owner, "__call__", model_call(_name))

    def _registering(self, original: Any) -> Any:
        def register_modules(pipeline: Any, **modules: Any) -> Any:
            try:
                for owner in type(pipeline).__mro__:
                    self.replace(owner, "__call__", model_call(_name))
            except Exception:
                log_failure("instrumenting a pipeline of diffusers")
            return original(pipeline, **modules)

        return register_modules

    def _processors(self, module: ModuleType) -> None:
        for owner in [
            processor for name, processor in vars(module).items() if name.endswith("Processor") or "LDM3D" in name
        ]:
            for stage in ("preprocess", "postprocess"):
                self.replace(owner, stage, timed_call(stage))
                self.replace(owner, f"{stage}_video", timed_call(stage))


def _name(pipeline: Any) -> str:
    path = getattr(pipeline, "name_or_path", None)
    return (path and transformers.repository_name(str(path))) or class_name(pipeline)
