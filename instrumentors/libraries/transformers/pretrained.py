"""Hugging Face repositories: loading from one is `load`, and its name becomes the name of the model.

A model is named by the last part of its repository or folder (meta-llama/Llama-3.1-8B is Llama-3.1-8B), never by the
folders above. A model that was built in the program is named by its class.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from contextvars import Token
from typing import Any

from ....core.stages import LOAD_READ
from ...instrumentor import log_failure
from ...loads import loads
from ...recorder import end
from ...records import MAX_MARKS, Marks, clock, current
from ..onnxruntime import model_name
from ..torch.models import thread_state


def suppress() -> Token[Marks | None]:
    """Hide the running request from everything that this context calls, until `recorder.end` gets the token."""
    return current.set(None)


# How the cache of the hub calls the folder of a repository: models--meta-llama--Llama-3.1-8B.
CACHED = "models--"
# What `model_name` answers where no folder may be named, and what a path relative to the program says.
NAMELESS = ("model", "", ".", "..")


def one_stage(stage: str) -> Callable[[Any], Any]:
    """Return a wrapper that makes every call of a plain function one *stage*, without the stages inside it.

    Loading a model is not the wait of its five hundred tensors for a thread, and a tokenizer that calls itself is called
    once. A call inside a module or inside `generate`, whose streamer decodes at every token, is part of that.
    """

    def make(original: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            marks = current.get()
            if marks is None or thread_state.inside:
                return original(*args, **options)
            hidden = suppress()
            begun = clock()
            try:
                return original(*args, **options)
            finally:
                end(hidden)
                if len(marks) < MAX_MARKS:
                    marks.extend((stage, begun, clock()))

        return call

    return make


def timed_load(original: Any) -> Any:
    """Wrap a function that loads from a repository or folder: stage `load`, and noted as a load outside of requests too."""
    inner = one_stage("load")(original)

    def call(*args: Any, **options: Any) -> Any:
        loading = loads.begin(_asked_for(args), reading=True)
        try:
            return inner(*args, **options)
        finally:
            loads.end(loading, LOAD_READ.key)

    return call


def _asked_for(args: Any) -> str:
    """Return the name of the requested repository, the first string among *args* (the class may come first); "" for none."""
    try:
        return next((repository_name(each) for each in args[:2] if isinstance(each, str)), "")
    except Exception:
        log_failure("naming what is loaded from a repository")
        return ""


def describe(model: Any) -> tuple[str, str, int, str, str, int]:
    """Return the facts about *model*: a `PreTrainedModel`, or whatever stands in its place."""
    return "@model", name_of(model), 0, "@device", str(getattr(model, "device", "")).partition(":")[0], 0


def name_of(model: Any) -> str:
    """Return the name of the repository or folder *model* came from, or else of its class."""
    # There is no public name for it.
    path = getattr(getattr(model, "config", None), "_name_or_path", "")
    return (path and repository_name(path)) or type(model).__name__


@functools.lru_cache(maxsize=256)
def repository_name(path: str) -> str:
    """Return the last meaningful part of *path*, "" for none.

    >>> repository_name("meta-llama/Llama-3.1-8B")
    'Llama-3.1-8B'
    >>> repository_name("/home/me/.cache/huggingface/hub/models--org--tiny/snapshots/0123456789012345678901234567890123456789")
    'tiny'
    """
    name = model_name(os.path.join(path.rstrip("/"), "model"))  # noqa: PTH118 - pathlib is not loaded by every host
    if name.startswith(CACHED):
        name = name.rpartition("--")[2]
    return "" if name in NAMELESS else name
