"""The folder is the package: what is on disk, in the wheel and in the import graph agree."""

from __future__ import annotations

import ast
import doctest
import importlib
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
PARTS = ("alerts", "analysis", "cli", "collector", "core", "dashboard", "instrumentors", "questions", "store")
MODULES = [
    *sorted(path for part in PARTS for path in (ROOT / part).rglob("*.py")),
    ROOT / "__init__.py",
    ROOT / "__main__.py",
    ROOT / "client.py",
]


def test_every_import_of_the_server_is_declared() -> None:
    declared = {
        re.split(r"[^\w-]", requirement)[0].lower()
        for extra in ("server", "clickhouse", "mcp")
        for requirement in EXTRAS[extra]
    }
    distributions = packages_distributions()
    imported = {
        name.partition(".")[0]
        for path in MODULES
        if path.relative_to(ROOT).parts[0] != "instrumentors"
        for node in ast.walk(ast.parse(path.read_text()))
        for name in _absolute_imports(node)
    }
    others = imported - sys.stdlib_module_names - {"opentelemetry"}

    assert {"flask", "plotly"} <= others
    assert [
        name
        for name in sorted(others)
        if not declared & {distribution.lower().replace("_", "-") for distribution in distributions[name]}
    ] == []


def _absolute_imports(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) and node.level == 0 else []


def test_every_package_is_copied_into_the_images() -> None:
    listed = (ROOT / ".dockerignore").read_text().split()

    assert {f"!{part}" for part in PARTS} | {"!setup.py"} <= set(listed)


def test_no_stray_module_lies_in_the_root() -> None:
    assert sorted(path.name for path in ROOT.glob("*.py")) == ["__init__.py", "__main__.py", "client.py", "setup.py"]


def test_modules_import_each_other_relatively() -> None:
    absolute = [
        f"{path}:{node.lineno}"
        for path in MODULES
        # sitecustomize runs before any package is imported, and PyInstaller runs its hook: both must name the package.
        if path.name not in {"sitecustomize.py", "hook-stagelens.py"}
        for node in ast.walk(ast.parse(path.read_text()))
        for name in _absolute_imports(node)
        if name.partition(".")[0] == "stagelens" and isinstance(node, ast.stmt)
    ]

    assert absolute == []


def test_no_module_is_loaded_under_two_names() -> None:
    names: dict[str, str] = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and Path(file).is_relative_to(ROOT) and not Path(file).is_relative_to(ROOT / "tests"):
            # pytest itself loads the root's __init__, and what that imports, under the folder's name.
            if ".venv" in file or name.split(".")[0] == ROOT.name != "stagelens" or Path(file) == ROOT / "__main__.py":
                continue
            names.setdefault(file, name)

            assert names[file] == name


def test_importing_the_package_loads_two_small_modules() -> None:
    code = "import sys; before = set(sys.modules); import stagelens; print(*sorted(set(sys.modules) - before))"

    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()

    own = [name for name in loaded if name.startswith(("stagelens.", "opentelemetry"))]
    assert own == ["stagelens.core", "stagelens.core.import_lock", "stagelens.core.version"]


def test_the_agent_needs_the_base_install_only() -> None:
    code = "import sys, stagelens; stagelens.instrument(); print(*sorted({name.split('.')[0] for name in sys.modules}))"

    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()

    servers = {"dash", "fastapi", "flask", "sqlalchemy", "starlette"}
    libraries = {"PIL", "google", "numpy", "onnxruntime", "pandas", "torch"}
    assert (servers | libraries).isdisjoint(loaded)


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"], ["run", "--", "true"]])
def test_the_command_line_imports_what_its_command_needs(words: list[str]) -> None:
    code = (
        "import os, sys, stagelens.__main__ as command_line; os.execvpe = lambda *_: sys.exit();\n"
        "try: command_line.main(sys.argv[1:])\n"
        "finally: print(*sorted(sys.modules), file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    loaded = set(ran.stderr.split())

    assert "stagelens.cli.commands" in loaded
    assert loaded.isdisjoint({"numpy", "pandas", "pydantic", "rich", "sqlalchemy", "yaml", "stagelens.core.settings"})


DOCUMENTED = [
    ".".join(("stagelens", *path.relative_to(ROOT).with_suffix("").parts))
    for path in MODULES
    if ">>>" in path.read_text()
]


@pytest.mark.parametrize("module", DOCUMENTED)
def test_examples_in_docstrings_are_true(module: str) -> None:
    result = doctest.testmod(importlib.import_module(module))

    assert result.attempted > 0
    assert result.failed == 0
