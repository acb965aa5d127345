"""ONNX Runtime: `load` (creating a session) and `forward` (running it).

The model is named by its file, without folder and ending, or by its graph where it came as bytes; the device by the
first execution provider. Inputs and outputs are passed on unread.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType, ModuleType
from typing import Any

from ..imports import Hook
from ..instrumentor import Instrumentor, report, timed
from ..recorder import MAX_MARKS, Marks, clock, current

# What exporters and model repositories call every model and version, in the cache of Hugging Face too
# (models--org--name/snapshots/<revision>/onnx/model.onnx).
GENERIC_NAME = re.compile(r"model(_(quantized|optimized|fp16|int8|q4|uint8))?|onnx|snapshots|\d+|[0-9a-f]{40}")
# A folder in one of these is a person's.
HOMES = ("home", "Users")


class OnnxRuntimeInstrumentor(Instrumentor):
    """`onnxruntime.InferenceSession` and whatever derives from it."""

    library = "onnxruntime"
    title = "ONNX Runtime"
    stages = MappingProxyType(
        {
            "forward": "`run`, `run_async`, `run_with_iobinding` and `run_with_ort_values` of a session",
            "load": "creating an `InferenceSession`",
        }
    )
    facts = ("model", "device")
    tested = MappingProxyType({"onnxruntime": "1.31.1"})

    def hooks(self) -> Mapping[str, Hook]:
        """Return what to patch where."""
        return {"onnxruntime": self._session}

    def _session(self, module: ModuleType) -> None:
        self.replace(module.InferenceSession, "__init__", timed("load"))
        # The methods live in a base class that training and inference sessions share.
        for owner in module.InferenceSession.__mro__:
            self.replace(owner, "run", _run)
            self.replace(owner, "run_with_ort_values", _run)
            self.replace(owner, "run_with_iobinding", _run_with_iobinding)
            self.replace(owner, "run_async", _run_async)


# Each spells its parameters: `*args, **options` costs twice as much at every call.
def _run(original: Any) -> Any:
    def run(self: Any, output_names: Any, input_feed: Any, run_options: Any = None) -> Any:
        marks = current.get()
        if marks is None:
            return original(self, output_names, input_feed, run_options)
        begun = clock()
        try:
            return original(self, output_names, input_feed, run_options)
        finally:
            _mark(marks, begun, self)

    return run


def _run_with_iobinding(original: Any) -> Any:
    def run_with_iobinding(self: Any, iobinding: Any, run_options: Any = None) -> Any:
        marks = current.get()
        if marks is None:
            return original(self, iobinding, run_options)
        begun = clock()
        try:
            return original(self, iobinding, run_options)
        finally:
            _mark(marks, begun, self)

    return run_with_iobinding


def _run_async(original: Any) -> Any:
    def run_async(  # noqa: PLR0917 - ONNX Runtime's signature
        self: Any, output_names: Any, input_feed: Any, callback: Any, user_data: Any, run_options: Any = None
    ) -> Any:
        marks = current.get()
        if marks is None:
            return original(self, output_names, input_feed, callback, user_data, run_options)
        begun = clock()

        # Called by a thread of ONNX Runtime, where no context variable reaches.
        def done(results: Any, data: Any, error: Any) -> None:
            _mark(marks, begun, self)
            callback(results, data, error)

        return original(self, output_names, input_feed, done, user_data, run_options)

    return run_async


def _mark(marks: Marks, begun: int, session: Any) -> None:
    if len(marks) >= MAX_MARKS:
        return
    marks.extend(("forward", begun, clock()))
    try:
        marks.extend(describe(session))
    except Exception:
        report("naming a model of onnxruntime")


def describe(session: Any) -> tuple[str, str, int, str, str, int]:
    """Return the facts about *session*: its model and its device."""
    path = session._model_path  # noqa: SLF001 - there is no public name for it
    model = model_name(path) if path else session.get_modelmeta().graph_name
    return "@model", model, 0, "@device", _device(session.get_providers()[0]), 0


@lru_cache(maxsize=256)
def model_name(path: str) -> str:
    """Return the file's name without its ending, or where that says nothing (resnet/1/model.onnx) its folder's name."""
    folder, file = os.path.split(path)
    stem = name = os.path.splitext(file)[0]  # noqa: PTH122 - pathlib is not loaded by every host
    while GENERIC_NAME.fullmatch(name):
        here = folder
        folder, name = os.path.split(here)
        if not name or os.path.basename(folder) in HOMES or here == os.path.expanduser("~"):  # noqa: PTH111, PTH119
            return stem
    return name


@lru_cache(maxsize=64)
def _device(provider: str) -> str:
    """Return the device behind *provider*: "cuda" for CUDAExecutionProvider."""
    return provider.removesuffix("ExecutionProvider").lower()
