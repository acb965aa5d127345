"""Hooks on imports: called once the module is whole, and invisible otherwise."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import zipfile
from collections.abc import Callable, Generator
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
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

    def hook(*names: str, then: Callable[[], object] = bool) -> Seen:
        seen: Seen = []

        def call(module: ModuleType) -> None:
            seen.append((module.__name__, getattr(module, "VALUE", None)))
            then()

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


def test_an_earlier_import_calls_the_hook_at_once_and_a_reload_again(
    hooked: Callable[..., Seen], tmp_path: Path
) -> None:
    (tmp_path / "earlier_one.py").write_text("VALUE = 1\n")
    module = importlib.import_module("earlier_one")
    seen = hooked("earlier_one")

    assert seen == [("earlier_one", 1)]

    importlib.reload(module)

    assert seen == [("earlier_one", 1)] * 2


def test_a_hook_waits_for_a_module_that_is_being_imported(hooked: Callable[..., Seen], tmp_path: Path) -> None:
    (tmp_path / "half_imported.py").write_text("import first_import\nVALUE = True\n")
    for name in ("first_import", "last_import"):
        (tmp_path / f"{name}.py").write_text("")
    seen: list[Seen] = []
    hooked("first_import", then=lambda: seen.append(hooked("half_imported")))
    # Any module that ends its import is an occasion.
    hooked("last_import")

    importlib.import_module("half_imported")
    assert seen == [[]]
    importlib.import_module("last_import")
    assert seen == [[("half_imported", True)]]


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


def test_an_import_has_no_frame_of_ours(hooked: Callable[..., Seen], tmp_path: Path) -> None:
    (tmp_path / "toy_old.py").write_text(
        "import warnings\nwarnings.warn('old', DeprecationWarning, 2)\nraise ImportError"
    )
    (tmp_path / "toy_user.py").write_text("import toy_old")
    hooked("toy_old")
    with pytest.warns(DeprecationWarning, match="old") as warned, pytest.raises(ImportError) as raised:
        importlib.import_module("toy_user")

    assert warned[0].filename == str(tmp_path / "toy_user.py")
    assert [Path(entry.path).name for entry in raised.traceback][-2:] == ["toy_user.py", "toy_old.py"]


def test_a_loader_that_cannot_be_changed_loads(
    hooked: Callable[..., Seen], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Fixed(SourceFileLoader):
        def __setattr__(self, name: str, value: object) -> None:
            if name == "exec_module":
                raise TypeError(name)
            super().__setattr__(name, value)

    class Finder:
        def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
            spec = PathFinder.find_spec(name, path, target)
            if spec is not None and name == "fixed_one":
                spec.loader = Fixed(name, str(spec.origin))
            return spec

    (tmp_path / "fixed_one.py").write_text("VALUE = 1\n")
    seen = hooked("fixed_one")
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path[:1], Finder(), *sys.meta_path[1:]])

    assert isinstance(importlib.import_module("fixed_one").__loader__, Fixed)
    assert seen == []
