"""The libraries we know, and `instrument`, which times each as soon as the program imports it.

A module of ours is loaded when its library is, not before: a process that imports none of them pays for none.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import NamedTuple

from . import functions, imports
from .instrumentor import Instrumentor, report


class Library(NamedTuple):
    """Where the instrumentor of a library is.

    Args:
        trigger: The import name that calls for it; a package, so that it is there before its submodules are, with an
            `__init__`, for a namespace is never executed.
        module: Its module in `libraries`.
        name: Its class there.
    """

    trigger: str
    module: str
    name: str

    def load(self) -> type[Instrumentor]:
        """Return its class."""
        return getattr(import_module(f".libraries.{self.module}", __package__), self.name)


LIBRARIES = (
    Library("aiohttp", "aiohttp_client", "AiohttpClientInstrumentor"),
    Library("aiohttp.web", "aiohttp_server", "AioHttpServerInstrumentor"),
    Library("bentoml", "bentoml", "BentoMLInstrumentor"),
    Library("concurrent.futures", "process_pools", "ProcessPoolInstrumentor"),
    Library("django", "django", "DjangoInstrumentor"),
    Library("flask", "flask", "FlaskInstrumentor"),
    Library("grpc", "grpc", "GrpcInstrumentor"),
    Library("gunicorn", "gunicorn", "GunicornInstrumentor"),
    Library("httpx", "httpx", "HttpxInstrumentor"),
    Library("httpx2", "httpx", "HttpxInstrumentor"),
    Library("litserve", "litserve", "LitServeInstrumentor"),
    Library("mlserver", "mlserver", "MLServerInstrumentor"),
    Library("onnxruntime", "onnxruntime", "OnnxRuntimeInstrumentor"),
    Library("openai", "openai", "OpenAIInstrumentor"),
    Library("opentelemetry.sdk.trace", "opentelemetry_sdk", "OpenTelemetrySdkInstrumentor"),
    Library("ray.serve", "ray_serve", "RayServeInstrumentor"),
    Library("requests", "requests", "RequestsInstrumentor"),
    Library("sentence_transformers", "sentence_transformers", "SentenceTransformersInstrumentor"),
    Library("starlette", "asgi", "AsgiInstrumentor"),
    Library("threading", "executors", "ExecutorInstrumentor"),
    Library("torch", "torch", "TorchInstrumentor"),
    Library("transformers", "transformers", "TransformersInstrumentor"),
    Library("tritonclient", "tritonclient", "TritonClientInstrumentor"),
    Library("urllib3", "urllib3", "Urllib3Instrumentor"),
    Library("uvicorn", "uvicorn", "UvicornInstrumentor"),
)


def instrument() -> None:
    """Time every library we know, whether it is imported already or later; calling this again changes nothing.

    `stagelens run` does it for a whole command; a program may do it by itself as its first line.
    """
    functions.FunctionInstrumentor().instrument()
    for library in LIBRARIES:
        if library not in _watched:
            _watched.add(library)
            imports.when_imported(library.trigger, _Watch(library))


_watched: set[Library] = set()


class _Watch:
    """Instruments one library when it is imported."""

    def __init__(self, library: Library) -> None:
        self._library = library

    def __call__(self, _: ModuleType) -> None:
        try:
            self._library.load()().instrument()
        except Exception:
            report(f"instrumenting {self._library.module}")
