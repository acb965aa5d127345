"""The first tier needs only what `make test` installs: the extra `dev`, and what its distributions require.

Of imports only, which is enough to see a mistake where more is installed; `.ci/run` begins with the tests in such an environment.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.tiers import tier_of_file

ROOT = Path(__file__).parents[1]
OURS = {"stagelens", "tests", "docs", "benchmarks"}


def required(name: str, extra: str) -> set[str]:
    """Return the installed distributions that *name* with *extra* requires, directly or through others, and itself."""
    found: set[tuple[str, str]] = set()
    waiting = [(name, extra), (name, "")]
    while waiting:
        each = waiting.pop()
        if each in found:
            continue
        found.add(each)
        try:
            requirements = map(Requirement, metadata.requires(each[0]) or ())
        except metadata.PackageNotFoundError:
            continue
        for requirement in requirements:
            if requirement.marker is None or requirement.marker.evaluate({"extra": each[1]}):
                waiting += [(canonicalize_name(requirement.name), one) for one in ("", *requirement.extras)]
    return {distribution for distribution, _ in found}


def imported(path: Path) -> Iterator[str]:
    """Yield the modules that *path* imports in the first tier.

    Not those for types, nor those of tests of other tiers and of fixtures: what those import inside is for some tests only.
    """
    waiting: list[ast.AST] = [ast.parse(path.read_text())]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            waiting += node.orelse
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or _is_first(node):
            waiting += ast.iter_child_nodes(node)


def _is_first(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    marks = " ".join(map(ast.unparse, function.decorator_list))
    return function.name.startswith("test_") and not {"pytest.mark.stacks", "pytest.mark.soak"} & set(marks.split())


def first_tier() -> dict[Path, set[str]]:
    waiting = [path for name in ("test_*.py", "conftest.py") for path in (ROOT / "tests").rglob(name)]
    waiting = [path for path in waiting if tier_of_file(path) == "first"]
    found: dict[Path, set[str]] = {}
    while waiting:
        path = waiting.pop()
        if path not in found:
            found[path] = set(imported(path))
            helpers = [
                ROOT.joinpath(*name.split(".")).with_suffix(".py") for name in found[path] if name.startswith("tests.")
            ]
            waiting += [helper for helper in helpers if helper.exists()]
    return found


def test_it_imports_only_what_its_environment_declares() -> None:
    files = first_tier()
    declared, providers = required("stagelens", "dev"), metadata.packages_distributions()
    known = OURS | sys.stdlib_module_names
    missing = {
        f"{path.relative_to(ROOT)}: {top}"
        for path, names in files.items()
        for top in {name.partition(".")[0] for name in names} - known
        if declared.isdisjoint(map(canonicalize_name, providers.get(top, ())))
    }

    assert len(files) > 100
    assert sorted(missing) == []
