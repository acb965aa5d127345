"""Guarantees of every instrumentor about patched functions, each in a separate process.

What its calls do, with a failure of ours inside them too, is in the tests of the module: that takes the library at work.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from stagelens.instrumentors.bootstrap import LIBRARIES

# What `make` puts beside what the tests have installed, by its trigger; and of these what does not get along with all others
# in one process: in batchers/ it is imported later.
BESIDE = {
    "bentoml": "bentoml",
    "gradio": "gradio",
    "kserve": "kserve",
    "litserve": "litserve",
    "llama_cpp": "llama",
    "mlserver": "mlserver",
    "ray.serve": "ray",
    "tensorflow": "tensorflow",
    "vllm": "vllm",
    **dict.fromkeys(
        ("aiokafka", "botocore", "confluent_kafka.cimpl", "kafka", "librosa", "orjson", "polars", "redis", "soundfile"),
        "around",
    ),
    **dict.fromkeys(("torchaudio", "torchvision"), "around"),
    **dict.fromkeys(("blacksheep", "cheroot", "daphne", "falcon", "granian", "hypercorn", "litestar"), "servers"),
    **dict.fromkeys(("pyramid", "quart", "sanic", "tornado", "waitress"), "servers"),
    **dict.fromkeys(
        ("catboost", "ctranslate2", "diffusers", "jax", "keras", "lightgbm", "openvino", "xgboost"), "models"
    ),
}
ALONE = {"gradio", "kserve", "llama_cpp", "mlserver", "ray.serve", "tensorflow", "vllm"}
# Patches each class of a library, which has more of them the more of its modules are imported; classes only before that.
GROWS = {"aiokafka", "confluent_kafka.cimpl", "kafka", "sklearn"}
INSTALLED = {trigger: Path(__file__).parents[2] / ".venv" / part for trigger, part in BESIDE.items()}
MISSING = {trigger for trigger, folder in INSTALLED.items() if not folder.exists() and not os.environ.get("CI")}
PROGRAM = Path(__file__).parent / "harmless" / "examine.py"
# Where a promise is kept in another way than by its letter.
ALLOWED = MappingProxyType(
    {
        # Nobody sends a name that anyio imports for itself to another process.
        "looks different": {
            "anyio.to_thread.get_async_backend pickled",
            # They return what is a generator in all that it does.
            "BoundSyncStream.__iter__ isgeneratorfunction",
            "BoundAsyncStream.__aiter__ isasyncgenfunction",
            "Response.iter_lines isgeneratorfunction",
            "Stream.__stream__ isgeneratorfunction",
            "AsyncStream.__stream__ isasyncgenfunction",
        },
        # Warnings to authors of other event loops and task factories.
        "is between a function and its caller": {
            "BaseEventLoop.create_task: _set_task_name: warnings.warn('Task.set_name() was added in Python 3.8, the method support will be mandatory for third-party task implementations since 3.13.', DeprecationWarning, stacklevel=3)",
            "Replica.perform_graceful_shutdown: _ensure_future: events._get_event_loop(stacklevel=4)",
        },
        "is noticed": {
            # What they return stands for a function, whose calls are timed: it has all names and attributes of the original.
            "APIMethod._local_call returns a function",
            "BaseHandler.make_view_atomic returns a Anything",
            "anyio.to_thread.get_async_backend returns a _Backend",
            "grpc._server._unary_request returns a function",
            "jax.jit returns a Jitted",
            # A cache.
            "torch._dynamo.trace_rules.get_tensor_method keeps what it was given, its result or its exception",
            # The names of models, which are text, stay with the marks of the request.
            "InferenceServerClient.async_infer keeps what it was given, its result or its exception",
            "InferenceServerClient.infer keeps what it was given, its result or its exception",
        },
        # Python turns the function of the subclass into a class method.
        "cannot be overridden": {"_MetadataRequester.__init_subclass__"},
    }
)


# Libraries that only the second tier has installed; those that take longest, TensorFlow and llama-cpp-python are in `make soak`.
HEAVY = {*BESIDE, "cv2", "sentence_transformers", "sklearn", "tokenizers", "torch", "transformers", "tritonclient"}
LIGHT = tuple(library.trigger for library in LIBRARIES if library.trigger not in HEAVY)
TIERS = dict.fromkeys(HEAVY, pytest.mark.stacks) | dict.fromkeys(
    ("diffusers", "llama_cpp", "tensorflow", "vllm"), pytest.mark.soak
)
TRIGGERS = [
    pytest.param(library.trigger, marks=TIERS.get(library.trigger, ()))
    for library in LIBRARIES
    if library.trigger not in MISSING
]


@functools.cache
def harmless(*trigger: str) -> dict[str, Any]:
    beside = [str(folder) for part, folder in INSTALLED.items() if part in trigger or not (trigger or part in ALONE)]
    # Django wants to be configured.
    completed = subprocess.run(
        [sys.executable, PROGRAM, *trigger],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([*beside, os.environ.get("PYTHONPATH", "")]),
            "DJANGO_SETTINGS_MODULE": "django.conf.global_settings",
            "OMP_NUM_THREADS": "1",
            "BENTOML_DO_NOT_TRACK": "True",
            # Its default is TensorFlow.
            "KERAS_BACKEND": "tensorflow" if "tensorflow" in trigger else "jax",
        },
        capture_output=True,
        text=True,
        check=False,
    )

    assert completed.returncode == 0, completed.stderr
    return json.loads(completed.stdout)


@pytest.mark.parametrize("trigger", TRIGGERS)
def test_an_instrumented_library_behaves_unchanged(trigger: str) -> None:
    found = harmless(trigger)
    broken = {what: set(where) - ALLOWED.get(what, set()) for what, where in found["broken"].items()}

    assert found["patched"]
    assert {what: where for what, where in broken.items() if where} == {}
    assert found["noise"] == []


@pytest.mark.parametrize("trigger", [trigger for trigger in TRIGGERS if trigger.values[0] not in ALONE | GROWS])
def test_a_library_imported_later_behaves_unchanged(trigger: str) -> None:
    together = harmless(*LIGHT) if trigger in LIGHT else harmless()
    # Classes in C, which are replaced while nobody has them yet.
    later = [place for place in together[trigger] if not place.startswith("gevent._gevent_cqueue.")]

    assert later == harmless(trigger)["patched"]


@pytest.mark.stacks
def test_all_libraries_in_one_process_behave_unchanged() -> None:
    every, light = harmless(), harmless(*LIGHT)
    own = {library.trigger for library in LIBRARIES if library.module != "servers"}.intersection(LIGHT)

    assert {trigger: every[trigger] for trigger in own} == {trigger: light[trigger] for trigger in own}
