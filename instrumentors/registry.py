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
        trigger: The import name that calls for it; a package, so that it is there before its submodules are.
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
    Library("onnxruntime", "onnxruntime", "OnnxRuntimeInstrumentor"),
    Library("starlette", "asgi", "AsgiInstrumentor"),
    Library("torch", "torch", "TorchInstrumentor"),
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
