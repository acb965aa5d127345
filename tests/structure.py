"""Print how large each package is and how modules depend on each other; exit with 1 where a limit is passed.

    python tests/structure.py

- code lines of each package: without blank lines, comments, docstrings and imports; a commit that raises one limit lowers another
- all lines of the product, the tests and the benchmarks
- import cycles: modules that import each other, inside of functions and for types, too
- public class names that several modules use
"""

from __future__ import annotations

import ast
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import grimp

ROOT = Path(__file__).parent.parent
# Code lines; the modules of the root are "stagelens".
MAX_CODE_LINES = {
    "alerts": 7_241,
    "analysis": 3_742,
    "cli": 2_479,
    "collector": 8_452,
    "core": 2_362,
    "dashboard": 14_529,
    "instrumentors": 15_586,
    "questions": 90,
    "stagelens": 372,
    "store": 6_792,
}
MAX_LINES = {"product": 94_067, "tests": 87_630, "benchmarks": 5_786}
MAX_CYCLES = 0
MAX_SHARED_NAMES = 0
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def files_of(folder: str) -> list[Path]:
    """Return the Python files of *folder*; of the root's own modules for "stagelens", of all packages for "product"."""
    if folder == "product":
        return [path for package in MAX_CODE_LINES for path in files_of(package)]
    return sorted(ROOT.glob("*.py") if folder == "stagelens" else (ROOT / folder).rglob("*.py"))


def code_lines(source: str) -> int:
    """Return how many lines of *source* are neither blank nor part of a comment, a docstring or an import."""
    code = {number for number, line in enumerate(source.splitlines(), 1) if line.strip() and line.strip()[0] != "#"}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            code.difference_update(_lines(node))
        elif isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            code.difference_update(_lines(node.body[0]))
    return len(code)


def import_cycles() -> list[list[str]]:
    """Return the groups of modules that import each other, the largest first."""
    graph = grimp.build_graph("stagelens", cache_dir=None)
    imported = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    reached = {module: _reached(module, imported) for module in imported if _is_product(module)}
    groups = {
        frozenset(other for other in modules if module in reached.get(other, ()))
        for module, modules in reached.items()
        if module in modules
    }
    return sorted((sorted(group) for group in groups), key=len, reverse=True)


def shared_class_names() -> Mapping[str, list[str]]:
    """Return the public class names that are defined in more than one file, with the files."""
    files: defaultdict[str, list[str]] = defaultdict(list)
    for path in files_of("product"):
        for name in _classes(path):
            files[name].append(str(path.relative_to(ROOT)))
    return {name: paths for name, paths in sorted(files.items()) if len(paths) > 1}


def _lines(node: ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _classes(path: Path) -> Iterator[str]:
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node.name


def _is_product(module: str) -> bool:
    return module.count(".") == 0 or module.split(".")[1] in {*MAX_CODE_LINES, "__main__", "client"}


def _reached(module: str, imported: Mapping[str, set[str]]) -> set[str]:
    """Return what *module* imports, directly or through others."""
    reached: set[str] = set()
    waiting = [module]
    while waiting:
        for other in imported.get(waiting.pop(), ()):
            if other not in reached:
                reached.add(other)
                waiting.append(other)
    return reached


def main() -> int:
    """Print the table; return the exit code."""
    cycles, shared = import_cycles(), shared_class_names()
    for group in cycles:
        print(f"import cycle of {len(group)}: {', '.join(group)}")
    for name, paths in shared.items():
        print(f"class {name}: {', '.join(paths)}")
    code = Counter(
        {package: sum(code_lines(path.read_text()) for path in files_of(package)) for package in MAX_CODE_LINES}
    )
    lines = {folder: sum(len(path.read_text().splitlines()) for path in files_of(folder)) for folder in MAX_LINES}
    measured = [
        *((f"code lines, {package}", code[package], limit) for package, limit in MAX_CODE_LINES.items()),
        ("code lines, product", code.total(), sum(MAX_CODE_LINES.values())),
        *((f"all lines, {folder}", lines[folder], limit) for folder, limit in MAX_LINES.items()),
        ("modules in import cycles", sum(map(len, cycles)), MAX_CYCLES),
        ("public class names used twice", len(shared), MAX_SHARED_NAMES),
    ]
    for label, value, limit in measured:
        print(f"{label:<32}{value:>8,}  of {limit:,}" + ("  TOO MANY" if value > limit else ""))
    return 1 if any(value > limit for _, value, limit in measured) else 0


if __name__ == "__main__":
    sys.exit(main())
