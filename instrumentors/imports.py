"""Import hooks: call a function when a library is imported, or at once if it already is.

A finder on `sys.meta_path` asks the other finders for the module; the loader they find then calls the hooks after `exec_module`
of that one module. The loader stays the same object, so `__loader__`, `inspect` and `importlib.resources` see no change, and
nothing is imported that the host does not import itself.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, TypeAlias

Hook: TypeAlias = Callable[[ModuleType], None]


def when_imported(name: str, hook: Hook) -> None:
    """Call *hook* with module *name* as soon as it is loaded, now if it already is, and again whenever it is reloaded.

    Args:
        name: The full import name, such as "fastapi.routing".
        hook: It must not raise: it runs inside the host's own import.
    """
    _hooks.setdefault(name, []).append(hook)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    module = sys.modules.get(name)
    if module is not None:
        hook(module)


def forget(name: str, hook: Hook) -> None:
    """Call *hook* no more; the last one to go takes the finder with it."""
    hooks = _hooks.get(name, [])
    if hook in hooks:
        hooks.remove(hook)
    if not hooks:
        _hooks.pop(name, None)
    if not _hooks and _finder in sys.meta_path:
        sys.meta_path.remove(_finder)


class _Finder:
    """Finder that returns the specs of the other finders, with the call of our hooks added.

    The class of `importlib.abc` is not its base: that module loads a dozen others, in every process of the host.
    """

    def __init__(self) -> None:
        self._asking = threading.local()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        # Another such finder may ask all finders in turn, this one included: the second question ends here.
        if fullname not in _hooks or getattr(self._asking, "name", None) == fullname:
            return None
        self._asking.name = fullname
        try:
            spec = _ask_the_others(self, fullname, path, target)
        finally:
            self._asking.name = None
        if spec is not None:
            _call_after_exec(spec)
        return spec


_hooks: dict[str, list[Hook]] = {}
_finder = _Finder()


def _ask_the_others(
    us: _Finder, fullname: str, path: Sequence[str] | None, target: ModuleType | None
) -> ModuleSpec | None:
    for finder in list(sys.meta_path):
        find_spec = getattr(finder, "find_spec", None)
        if finder is us or find_spec is None:
            continue
        spec: ModuleSpec | None = find_spec(fullname, path, target)
        if spec is not None:
            return spec
    return None


def _call_after_exec(spec: ModuleSpec) -> None:
    loader: Any = spec.loader
    original = getattr(loader, "exec_module", None)
    # Built-in and frozen modules are loaded by classes, not instances: a method of ours would catch every such module.
    if original is None or isinstance(loader, type):
        return

    def exec_module(module: ModuleType) -> None:
        # A loader may serve several modules, as that of a zip file does.
        if module.__name__ != spec.name:
            original(module)
            return
        if vars(loader).get("exec_module") is exec_module:
            del loader.exec_module
        original(module)
        for hook in list(_hooks.get(spec.name, ())):
            hook(module)

    try:
        loader.exec_module = exec_module
    except AttributeError:
        # A loader with slots: the library runs untouched.
        return
