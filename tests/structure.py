"""Print how large the product is and how its modules depend on each other; exit with 1 where a limit is passed.

    python tests/structure.py

- product files and lines: every Python file that is installed with the package
- import cycles: modules that import each other at run time, also from inside of functions; those for types only do not count
- public class names that several modules use
"""

from __future__ import annotations

import ast
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import grimp

ROOT = Path(__file__).parent.parent
NOT_PRODUCT = frozenset({"tests", "benchmarks", "docs", "examples", "docker", "helm", "artifacts", "build", "dist"})
MAX_FILES, MAX_LINES, MAX_CYCLES = 429, 100_106, 0
# Of the same word for two things: an `Event` of PyTorch is none of a deployment.
MAX_SHARED_NAMES = 1


def product_files() -> list[Path]:
    """Return every Python file that is installed with the package."""
    found = (path.relative_to(ROOT) for path in ROOT.rglob("*.py"))
    return sorted(path for path in found if path.parts[0] not in NOT_PRODUCT and not path.parts[0].startswith("."))


def import_cycles() -> list[list[str]]:
    """Return the groups of modules that import each other, the largest first."""
    graph = grimp.build_graph("stagelens", exclude_type_checking_imports=True, cache_dir=None)
    imported = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    reached = {module: _reached(module, imported) for module in imported if not _is_outside(module)}
    groups = {
        frozenset(other for other in mine if module in reached.get(other, ()))
        for module, mine in reached.items()
        if module in mine
    }
    return sorted((sorted(group) for group in groups), key=len, reverse=True)


def shared_class_names() -> Mapping[str, list[str]]:
    """Return the public class names that are defined in more than one file, with the files."""
    files: defaultdict[str, list[str]] = defaultdict(list)
    for path in product_files():
        for name in _classes(path):
            files[name].append(str(path))
    return {name: where for name, where in sorted(files.items()) if len(where) > 1}


def _classes(path: Path) -> Iterator[str]:
    for node in ast.parse((ROOT / path).read_text()).body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node.name


def _is_outside(module: str) -> bool:
    return bool(re.match(rf"stagelens\.({'|'.join(NOT_PRODUCT)})\b", module))


def _reached(module: str, imported: Mapping[str, set[str]]) -> set[str]:
    """Return what *module* imports, directly or through others."""
    found: set[str] = set()
    waiting = [module]
    while waiting:
        for other in imported.get(waiting.pop(), ()):
            if other not in found:
                found.add(other)
                waiting.append(other)
    return found


def main() -> int:
    """Print the table; return the exit code."""
    files = product_files()
    lines = [len((ROOT / path).read_text().splitlines()) for path in files]
    cycles, shared = import_cycles(), shared_class_names()
    for group in cycles:
        print(f"import cycle of {len(group)}: {', '.join(group)}")
    for name, where in shared.items():
        print(f"class {name}: {', '.join(where)}")
    measured = (
        ("product files", len(files), MAX_FILES),
        ("product lines", sum(lines), MAX_LINES),
        ("median lines of a file", round(statistics.median(lines)), None),
        ("modules in import cycles", sum(map(len, cycles)), MAX_CYCLES),
        ("public class names used twice", len(shared), MAX_SHARED_NAMES),
    )
    passed = True
    for what, value, limit in measured:
        over = limit is not None and value > limit
        passed = passed and not over
        print(f"{what:<32}{value:>8,}" + ("" if limit is None else f"  of {limit:,}") + ("  TOO MANY" if over else ""))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
