"""Import hooks: functions that are called when a module is imported, or at once if it already is.

A finder on `sys.meta_path` asks the other finders for the module; the loader they find then calls the hooks after `exec_module`
of that one module. The loader stays the same object, so `__loader__`, `inspect` and `importlib.resources` see no change, and
nothing is imported that the host does not import itself.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, TypeAlias

Hook: TypeAlias = Callable[[ModuleType], None]


def when_imported(name: str, hook: Hook) -> None:
    """Call *hook* with module *name* as soon as it is loaded, now if it already is, and again whenever it is reloaded.

    It must not raise: it runs inside the host's own import.
    """
    _hooks.setdefault(name, []).append(hook)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    module = sys.modules.get(name)
    if module is None:
        return
    if _is_loading(module):
        # It imports what has led here, and defines later what the hook replaces.
        _early.append((module, hook))
    else:
        hook(module)


def _is_loading(module: ModuleType) -> bool:
    return module.__name__ not in _executed and getattr(module.__spec__, "_initializing", False)


def _run_early() -> None:
    for entry in [entry for entry in _early if not _is_loading(entry[0])]:
        _early.remove(entry)
        module, hook = entry
        if hook in _hooks.get(module.__name__, ()):
            hook(module)


def was_watched(name: str) -> bool:
    """Return whether our hooks saw the import of module *name*, so that the host has nothing of it that was there before."""
    return name in _executed


def forget(name: str, hook: Hook) -> None:
    """Unregister *hook*; remove the finder together with the last hook."""
    hooks = _hooks.get(name, [])
    if hook in hooks:
        hooks.remove(hook)
    if not hooks:
        _hooks.pop(name, None)
    if not _hooks and _finder in sys.meta_path:
        sys.meta_path.remove(_finder)


class _Finder:
    """Finder of the specs of the other finders; no subclass of that in `importlib.abc`, which imports a dozen modules."""

    def __init__(self) -> None:
        self._asking = threading.local()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        # Another finder of this kind may query all finders, including this one: the nested query ends here.
        if fullname not in _hooks or getattr(self._asking, "name", None) == fullname:
            return None
        self._asking.name = fullname
        try:
            spec = _find_by_other_finders(self, fullname, path, target)
        finally:
            self._asking.name = None
        if spec is not None:
            _call_after_exec(spec)
        return spec


_hooks: dict[str, list[Hook]] = {}
_finder = _Finder()
# Modules that were being imported when their hook was registered.
_early: list[tuple[ModuleType, Hook]] = []
# Those that have run to their end, although their import goes on until our hooks return.
_executed: set[str] = set()


def _find_by_other_finders(
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
        # A loader may load several modules, for example that of a zip file.
        if module.__name__ != spec.name:
            original(module)
            return
        if vars(loader).get("exec_module") is exec_module:
            del loader.exec_module
        original(module)
        _executed.add(spec.name)
        for hook in list(_hooks.get(spec.name, ())):
            hook(module)
        if _early:
            _run_early()

    # As frames of Python's own import, which warnings and tracebacks leave out.
    exec_module.__code__ = exec_module.__code__.replace(
        co_filename="<frozen importlib._bootstrap_external>", co_name="_call_with_frames_removed"
    )
    # A loader with slots, or one that refuses, cannot be patched: the library runs unchanged.
    with contextlib.suppress(Exception):
        loader.exec_module = exec_module
