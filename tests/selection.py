"""Run some tests without collecting all the others.

    python -m tests.selection --tier first --word onnxruntime    # whose name, or whose file's name, has this in it
    python -m tests.selection --tier first --changed main        # of what differs from a branch

What belongs to a changed file is read from names and imports alone, one step far: that takes a second and may miss a test,
which `make test` does not.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path, PurePath

import pytest

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"
# More test files than this are worth three processes. [files]
MANY = 12
_TEST = re.compile(r"^ *(?:async )?def (test_\w+)", re.MULTILINE)


def with_word(word: str) -> set[Path]:
    word = word.lower()
    return {
        path
        for path in TESTS.rglob("test_*.py")
        if word in "\n".join([str(path.relative_to(ROOT)), *_TEST.findall(path.read_text())]).lower()
    }


def changed_files(base: str) -> set[PurePath]:
    """Return the files that differ from where this branch left *base*, new ones too, relative to the root."""
    commands = (
        ("diff", "--name-only", "--merge-base", base),
        ("ls-files", "--others", "--exclude-standard"),
    )
    outputs = (
        subprocess.run(["git", *words], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
        for words in commands
    )
    return {PurePath(line) for output in outputs for line in output.splitlines()}


def belonging_to(changed: Iterable[PurePath]) -> set[Path]:
    """Return the test files that belong to *changed* ones: themselves, those that import them, and those named after them."""
    changed = set(changed)
    names = {_module(path) for path in changed if path.suffix == ".py"}
    imports = {path: _imported(path) for path in TESTS.rglob("*.py")}
    # A helper imports what it helps to test, and other helpers.
    while more := {_module(path.relative_to(ROOT)) for path in imports if imports[path] & names} - names:
        helpers = {name for name in more if name.startswith("tests.") and ".test_" not in name}
        if helpers <= names:
            break
        names |= helpers
    return {
        path
        for path in imports
        if path.name.startswith("test_") and (imports[path] & names or any(_is_of(path, each) for each in changed))
    }


def _is_of(test: Path, changed: PurePath) -> bool:
    own = test.relative_to(ROOT)
    if changed.name == "conftest.py":
        return own.is_relative_to(changed.parent)
    if changed.suffix == ".py":
        return own == changed or (own.parent == "tests" / changed.parent and changed.stem in own.stem)
    return changed.name in test.read_text()


def _module(path: PurePath) -> str:
    """Return the name that a file is imported by: the root is the package `stagelens`, `tests` is beside it."""
    parts = [part for part in path.with_suffix("").parts if part != "__init__"]
    return ".".join(parts if parts[:1] == ["tests"] else ["stagelens", *parts])


def _imported(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.selection", description=__doc__)
    parser.add_argument("--tier", required=True, help="of which tier (CONTRIBUTING.md)")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--word", help="a part of the names of tests or files")
    which.add_argument("--changed", metavar="BRANCH", help="the branch to compare with")
    options = parser.parse_args()
    try:
        files = with_word(options.word) if options.word else belonging_to(changed_files(options.changed))
    except subprocess.CalledProcessError:
        return 2
    processes = ("--numprocesses", "3", "--dist", "loadfile") if len(files) > MANY else ()
    keyword = ("-k", options.word) if options.word else ()
    arguments = ("--tier", options.tier, *keyword, *processes, *sorted(map(str, files)))
    code = pytest.main([*arguments]) if files else pytest.ExitCode.NO_TESTS_COLLECTED
    if code != pytest.ExitCode.NO_TESTS_COLLECTED:
        return int(code)
    if options.changed:
        print(f"No test of this tier belongs to what differs from {options.changed}.")
        return 0
    print(
        f"No test of this tier has {options.word!r} in its name. `make test` has the tier 'first', `make test-stacks` the other."
    )
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
