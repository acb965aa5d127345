"""What of a command's environment would be timed by itself, and what would not."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import NamedTuple

from ..bootstrap import LIBRARIES
from .environment import Look

# Libraries in which a model runs and that have no module of ours: distribution, import name.
WITHOUT_MODULE = {
    "ctranslate2": "ctranslate2",
    "jax": "jax",
    "lightgbm": "lightgbm",
    "llama-cpp-python": "llama_cpp",
    "mlx": "mlx",
    "onnxruntime-genai": "onnxruntime_genai",
    "openvino": "openvino",
    "paddlepaddle": "paddle",
    "scikit-learn": "sklearn",
    "spacy": "spacy",
    "tensorflow": "tensorflow",
    "tensorrt": "tensorrt",
    "xgboost": "xgboost",
}
# Tested along with a library, and used without it as well: who imports one of them need not have the library.
ALSO_ALONE = frozenset({"gevent", "werkzeug"})
# The same library under another name: what runs on another device.
OTHER_NAMES = {"onnxruntime": ("onnxruntime-gpu", "onnxruntime-directml", "onnxruntime-openvino")}


class Timed(NamedTuple):
    """A library that would be timed.

    Args:
        title: Its name as people write it.
        versions: Its distributions that are installed, each with the version, and the one it was tested with.
        certain: Whether the command's own modules import it, as far as they are known; else something else has to.
    """

    title: str
    versions: dict[str, tuple[str, str]]
    certain: bool


def timed(look: Look) -> Iterator[Timed]:
    """Yield what is installed and has a module of ours, by title."""
    imported = look.sources.imported() | {look.target.name}
    found = {library.load() for library in LIBRARIES}
    classes = sorted((cls for cls in found if not _is_pythons(cls.library)), key=lambda cls: cls.title.lower())
    mains = {next(iter(cls.tested)) for cls in classes}
    for cls in classes:
        main = next(iter(cls.tested))
        # What was tested along with it and has a module of its own is told there.
        versions = {
            there: (look.installed(there), tested)
            for name, tested in cls.tested.items()
            if name not in mains - {main}
            and (there := next(filter(look.installed, (name, *OTHER_NAMES.get(name, ()))), ""))
        }
        used = {name for name in versions.keys() - ALSO_ALONE if name.replace("-", "_") in imported}
        used |= {name for name in versions if name == main and cls.library.partition(".")[0] in imported}
        if any(name == main or name.startswith(cls.library) for name in versions):
            told = {name: both for place, (name, both) in enumerate(versions.items()) if place == 0 or name in used}
            yield Timed(cls.title, told if look.sources.trees else versions, not look.sources.trees or bool(used))


def not_timed(look: Look) -> dict[str, str]:
    """Return what is installed and has no module of ours, with its version; of what the sources import, if they are known."""
    imported = look.sources.imported()
    return {
        name: version
        for name, module in WITHOUT_MODULE.items()
        if (version := look.installed(name)) and (not look.sources.trees or module in imported)
    }


def _is_pythons(library: str) -> bool:
    return library.partition(".")[0] in sys.stdlib_module_names
