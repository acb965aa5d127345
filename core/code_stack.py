"""Call stacks of the tail profiler: names, files and line numbers of code, never arguments or values of variables.

On the wire and in the store a stage and a stack form one key: the stage, then the frames from the outermost to the innermost,
separated by semicolons (https://github.com/brendangregg/FlameGraph, `folded stacks`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .text import is_whole_number, printable

# Frames beyond the limit are cut off at the outer end: the innermost ones explain the time.
MAX_FRAMES = 24
MAX_PART = 120
# Characters that separate the parts of a key.
_SEPARATORS = str.maketrans(";@", "__")


class CodeFrame(NamedTuple):
    module: str  # Import name of the module; the name of the script for `__main__`
    function: str  # Qualified name in the module, such as `Model.predict`
    file: str = ""  # Path relative to the entry of `sys.path` that contains it, or the last two parts of the path
    # Line that runs in the innermost frame of the user's code, first line of the function in other frames; 0 for unknown
    line: int = 0

    @property
    def place(self) -> str:
        name = self.file.rpartition("/")[2]
        return f"{name}:{self.line}" if name and self.line else name or self.module


def stack_key(stage: str, frames: Sequence[CodeFrame]) -> str:
    """Return the key of a stage and a stack.

    >>> stack_key("handler", [CodeFrame("serve", "predict", "serve.py", 30), CodeFrame("serve", "resize", "serve.py", 41)])
    'handler;serve:predict@serve.py:30;serve:resize@serve.py:41'
    """
    parts = [f"{_clean(f.module)}:{_clean(f.function)}@{_clean(f.file)}:{f.line}" for f in frames[-MAX_FRAMES:]]
    return ";".join((_clean(stage), *parts))


def split_stack_key(key: str) -> tuple[str, tuple[CodeFrame, ...]]:
    """Return the stage and the frames of a key from `stack_key`; a frame that is no valid text becomes a function of that name.

    >>> split_stack_key("handler;serve:resize@serve.py:41")
    ('handler', (CodeFrame(module='serve', function='resize', file='serve.py', line=41),))
    """
    stage, *frames = key.split(";")
    return stage, tuple(_frame(text) for text in frames)


def _frame(text: str) -> CodeFrame:
    code, _, position = text.partition("@")
    module, _, function = code.partition(":")
    file, _, line = position.rpartition(":")
    return CodeFrame(module if function else "", function or code, file, int(line) if is_whole_number(line) else 0)


def _clean(text: str) -> str:
    return printable(text[-MAX_PART:]).translate(_SEPARATORS)
