"""The command's own modules, parsed and never executed: a script or `module:app` among its words, and their local imports.

Conclusions from them are guesses: a name may be something else when the program runs.
"""

from __future__ import annotations

import ast
import os
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# Far more than a service has of its own; a look must take no time.
MAX_FILES = 200
MAX_BYTES = 1024**2
_MODULE = re.compile(r"([A-Za-z_][\w.]*)(:[\w.]+)?(\(.*\))?")
# Options that name the folder in which a server finds the application.
_FOLDERS = ("--app-dir", "--chdir", "--pythonpath", "--working-dir")


@dataclass(frozen=True, slots=True)
class Sources:
    """Files that could be read.

    Args:
        trees: Their syntax trees, by path, the program's first.
    """

    trees: Mapping[Path, ast.Module]

    def imported(self) -> set[str]:
        """Return the top names of all that is imported anywhere in them."""
        return {name.partition(".")[0] for tree in self.trees.values() for _, name in imports(tree)}

    def calls(self) -> Iterator[tuple[str, str, ast.Call]]:
        """Yield every call with its place, as people write it, and its dotted name."""
        for path, tree in self.trees.items():
            for node in ast.walk(tree):
                if isinstance(node, ast.Call):
                    yield f"{path}:{node.lineno}", dotted(node.func), node

    def defines(self, module: str, path: str) -> bool | None:
        """Return whether *module* has a function or method *path*; None where the module is not among these."""
        endings = (Path(*module.split(".")).with_suffix(".py"), Path(*module.split("."), "__init__.py"))
        file = next((file for file in self.trees for ending in endings if str(file).endswith(str(ending))), None)
        if file is None:
            return None
        bodies, tops = [self.trees[file].body], path.split(".")
        for name in tops:
            found = [node for body in bodies for node in body if getattr(node, "name", None) == name]
            bodies = [getattr(node, "body", []) for node in found]
        # A name that is imported into the module, or assigned there, is one too.
        names = {
            alias.asname or alias.name
            for node in ast.walk(self.trees[file])
            if isinstance(node, (ast.Import, ast.ImportFrom))
            for alias in node.names
        }
        names |= {
            node.id
            for node in ast.walk(self.trees[file])
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }
        return bool(bodies) or tops[0] in names or "*" in names


def read_sources(program: str, words: Sequence[str], folder: Path) -> Sources:
    """Return the modules that *program* with *words*, started in *folder*, has of its own."""
    folders = [folder, *(folder / value for value in _folders(words))]
    waiting = deque(path for word in (program, *words) for path in _begun(word, folders))
    trees: dict[Path, ast.Module] = {}
    while waiting and len(trees) < MAX_FILES:
        path = waiting.popleft()
        if path in trees or (tree := _parsed(path)) is None:
            continue
        trees[path] = tree
        beside = [*folders, path.parent, folder / path.parent]
        waiting.extend(found for _, name in imports(tree) for found in _modules(name, beside))
    return Sources(trees)


def imports(tree: ast.Module) -> Iterator[tuple[ast.stmt, str]]:
    """Yield each import of *tree* and the name it imports; of `from a import b` both `a` and `a.b`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            yield from (
                (node, name)
                for name in (module, *(f"{module}.{alias.name}".strip(".") for alias in node.names))
                if name
            )


def dotted(node: ast.expr) -> str:
    """Return the dotted name of an expression such as `a.b.c`; calls in between are reduced to their names."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    if isinstance(node, ast.Call):
        return dotted(node.func)
    return node.id if isinstance(node, ast.Name) else ""


def _folders(words: Sequence[str]) -> Iterator[str]:
    for place, word in enumerate(words):
        name, sign, value = word.partition("=")
        if name in _FOLDERS:
            yield value if sign else "".join(words[place + 1 : place + 2])


def _begun(word: str, folders: Sequence[Path]) -> Iterator[Path]:
    if word.endswith(".py"):
        yield from (_shortest(path) for path in [folder / word for folder in folders] if _is_file(path))
    elif found := _MODULE.fullmatch(word):
        yield from _modules(found[1], folders)


def _modules(name: str, folders: Sequence[Path]) -> Iterator[Path]:
    parts = name.split(".")
    for folder in folders:
        for path in (folder.joinpath(*parts).with_suffix(".py"), folder.joinpath(*parts, "__init__.py")):
            # Not what was installed into a folder below this one.
            if _is_file(path) and "site-packages" not in path.parts:
                yield _shortest(path)
                return


def _is_file(path: Path) -> bool:
    # Its own method raises where a name is too long for a file.
    return os.path.isfile(path)  # noqa: PTH113


def _shortest(path: Path) -> Path:
    resolved, here = path.resolve(), Path.cwd()
    return resolved.relative_to(here) if resolved.is_relative_to(here) else resolved


def _parsed(path: Path) -> ast.Module | None:
    try:
        return ast.parse(path.read_bytes()[:MAX_BYTES])
    except (OSError, SyntaxError, ValueError):
        return None
