"""Hooks on imports: called once the module is whole, and invisible otherwise."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import zipfile
from collections.abc import Callable, Generator
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import LazyLoader, module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from stagelens.instrumentors import import_hooks

Seen = list[tuple[str, Any]]


@pytest.fixture
def hooked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Callable[..., Seen]]:
    """Hook modules by name and collect what the hook saw; modules are looked for in tmp_path."""
    monkeypatch.syspath_prepend(str(tmp_path))
    hooks: list[tuple[str, import_hooks.Hook]] = []

    def hook(*names: str) -> Seen:
        seen: Seen = []

        def call(module: ModuleType) -> None:
            seen.append((module.__name__, getattr(module, "VALUE", None)))

        for name in names:
            hooks.append((name, call))
            import_hooks.when_imported(name, call)
        return seen

    yield hook
    for name, call in hooks:
        import_hooks.forget(name, call)
        sys.modules.pop(name, None)


def test_a_later_import_calls_the_hook_with_the_complete_module(hooked: Callable[..., Seen], tmp_path: Path) -> None:
    (tmp_path / "later_one.py").write_text("VALUE = 1\nimport math\nVALUE = 2\n")
    seen = hooked("later_one")

    assert seen == []

    module = importlib.import_module("later_one")

    assert seen == [("later_one", 2)]
    assert inspect.getsource(module).startswith("VALUE = 1")
    assert type(module.__loader__).__name__ == "SourceFileLoader"
    assert "exec_module" not in vars(module.__loader__)


def test_an_earlier_import_calls_the_hook_at_once(hooked: Callable[..., Seen], tmp_path: Path) -> None:
    (tmp_path / "earlier_one.py").write_text("VALUE = 1\n")
    importlib.import_module("earlier_one")

    assert hooked("earlier_one") == [("earlier_one", 1)]


def test_a_reload_calls_the_hook_again(hooked: Callable[..., Seen], tmp_path: Path) -> None:
    (tmp_path / "again_one.py").write_text("VALUE = 1\n")
    seen = hooked("again_one")
    importlib.reload(importlib.import_module("again_one"))

    assert seen == [("again_one", 1)] * 2


def test_finding_a_module_spec_loads_nothing(hooked: Callable[..., Seen], tmp_path: Path) -> None:
    (tmp_path / "asked_one.py").write_text("VALUE = 1\n")
    seen = hooked("asked_one", "absent_one")

    assert importlib.util.find_spec("asked_one") is not None
    assert importlib.util.find_spec("absent_one") is None
    assert seen == []
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("absent_one")


def test_a_module_import_error_is_unchanged(hooked: Callable[..., Seen], tmp_path: Path) -> None:
    (tmp_path / "broken_one.py").write_text("raise OSError('theirs')\n")
    seen = hooked("broken_one")
    for _ in range(2):
        with pytest.raises(OSError, match="theirs"):
            importlib.import_module("broken_one")

    assert seen == []


def test_modules_of_one_archive_are_distinguished(hooked: Callable[..., Seen], tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "archive.zip", "w") as archive:
        archive.writestr("zipped_outer.py", "import zipped_plain, zipped_inner\nVALUE = zipped_inner.VALUE + 1\n")
        archive.writestr("zipped_inner.py", "VALUE = 1\n")
        archive.writestr("zipped_plain.py", "VALUE = 1\n")
    sys.path.insert(0, str(tmp_path / "archive.zip"))
    seen = hooked("zipped_outer", "zipped_inner")
    try:
        module = importlib.import_module("zipped_outer")
    finally:
        sys.path.remove(str(tmp_path / "archive.zip"))
        sys.modules.pop("zipped_plain", None)

    assert seen == [("zipped_inner", 1), ("zipped_outer", 2)]
    assert "exec_module" not in vars(module.__loader__)


def test_a_lazy_module_stays_lazy(hooked: Callable[..., Seen], tmp_path: Path) -> None:
    (tmp_path / "lazy_one.py").write_text("VALUE = 1\n")
    seen = hooked("lazy_one")
    spec = importlib.util.find_spec("lazy_one")
    assert spec is not None
    assert spec.loader is not None
    loader = spec.loader = LazyLoader(spec.loader)
    module = sys.modules["lazy_one"] = module_from_spec(spec)
    loader.exec_module(module)

    assert seen == []
    assert module.VALUE == 1
    assert seen == [("lazy_one", 1)]


def test_a_finder_that_calls_all_finders_does_not_recurse(hooked: Callable[..., Seen], tmp_path: Path) -> None:
    (tmp_path / "shared_one.py").write_text("VALUE = 1\n")

    class Other(MetaPathFinder):
        asking = False

        def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
            if fullname != "shared_one" or self.asking:
                return None
            del path, target
            self.asking = True
            try:
                return importlib.util.find_spec(fullname)
            finally:
                self.asking = False

    seen = hooked("shared_one")
    other = Other()
    for position in (0, 1):
        sys.meta_path.insert(position, other)
        try:
            importlib.import_module("shared_one")
        finally:
            sys.meta_path.remove(other)
            del sys.modules["shared_one"]

    assert seen == [("shared_one", 1)] * 2


def test_removing_the_last_hook_removes_the_finder(tmp_path: Path) -> None:
    before = list(sys.meta_path)
    script = tmp_path / "gone.py"
    script.write_text("")
    hooks: list[import_hooks.Hook] = [lambda _: None, lambda _: None]
    for hook in hooks:
        import_hooks.when_imported("gone", hook)
    for hook in hooks:
        import_hooks.forget("gone", hook)

    assert sys.meta_path == before
