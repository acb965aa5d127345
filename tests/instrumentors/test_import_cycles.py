"""The import graph of the instrumentors and the root package has no cycle, imports inside functions counted."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = [ROOT / "__init__.py", *(ROOT / "instrumentors").rglob("*.py"), *(ROOT / "core").rglob("*.py")]


def name_of(path: Path) -> str:
    """Return the dotted name of a module below the root package, "" for the root package itself."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in FILES}


def imported_by(name: str) -> set[str]:
    path = MODULES[name]
    tree = ast.parse(path.read_text())
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    package = [part for part in package if part]
    for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level and id(node) not in for_types:
            base = [*package[: len(package) - node.level + 1], *(node.module or "").split(".")]
            module = ".".join(part for part in base if part)
            for alias in node.names:
                submodule = f"{module}.{alias.name}".strip(".")
                found.add(submodule if submodule in MODULES else module)
    return found - {name}


def test_no_import_cycle() -> None:
    assert list(TopologicalSorter({name: imported_by(name) for name in MODULES}).static_order())
