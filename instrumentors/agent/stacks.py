"""Call stacks as keys: which functions of a stack are named, and with which path and line."""

from __future__ import annotations

import functools
import sys
import sysconfig
from collections.abc import Sequence
from types import CodeType, FrameType
from typing import Any, NamedTuple

from ...core.code_stack import CodeFrame, stack_key
from ..records import clock
from .frames import wait_at

MAX_CODE = 20_000
# Limits of the text of a trace.
MAX_LINES, MAX_BYTES = 20, 8192
# Keys of one series between two exports, and of a process in an hour.
MAX_KEYS, MAX_PROCESS_KEYS = 200, 5000
HOUR_NS = 3600 * 10**9
# https://docs.python.org/3/library/sysconfig.html#installation-paths
_NOT_USER = tuple({sysconfig.get_path(name) + "/" for name in ("stdlib", "platstdlib", "purelib", "platlib")})
# Modules of the functions that call the work of a request.
_OPENERS = frozenset(
    {
        "stagelens.instrumentors.api",
        *(
            f"stagelens.instrumentors.libraries.{name}"
            for name in ("aiohttp_server", "asgi", "executors", "grpc_server", "starlette", "wsgi")
        ),
    }
)
# Code and running line of each function, from the outermost to the innermost; all in one object, because the garbage collector
# visits each object of the samples that wait.
Stack = tuple[Any, ...]


class Code(NamedTuple):
    frame: CodeFrame
    is_user: bool
    is_ours: bool


class Stacks:
    """Descriptions of the functions of this process, and the keys of its stacks in the current hour."""

    def __init__(self) -> None:
        self._codes: dict[CodeType, Code] = {}
        self._keys: dict[tuple[str, Stack], str] = {}
        self._keys_since = clock()

    def is_user(self, frame: FrameType) -> bool:
        return self._code(frame).is_user

    def key(self, stage: str, stack: Stack) -> str:
        key = self._keys.get((stage, stack))
        if key is None:
            key = stack_key(
                stage, [code.frame._replace(line=line) for code, line in zip(stack[::2], stack[1::2], strict=True)]
            )
            if clock() - self._keys_since > HOUR_NS:
                self._keys.clear()
                self._keys_since = clock()
            if len(self._keys) >= MAX_PROCESS_KEYS:
                return other_key(key)
            self._keys[stage, stack] = key
        return key

    def resolve(self, frames: Sequence[FrameType]) -> Stack:
        codes = [self._code(frame) for frame in frames]
        openers = [position for position, code in enumerate(codes) if code.frame.module in _OPENERS]
        users = [position for position, code in enumerate(codes) if code.is_user]
        # Without a wrapper, as in a `with` block, the work starts at the user's code.
        outermost = openers[-1] if openers else users[-1] + 1 if users else len(codes)
        inside = [position for position in range(outermost) if not codes[position].is_ours]
        innermost_user = next((position for position in inside if codes[position].is_user), -1)
        stack: list[Any] = []
        for at in reversed(inside):
            stack += codes[at], (frames[at].f_lineno or 0) if at == innermost_user else codes[at].frame.line
        if innermost_user == 0 and (wait := wait_at(frames[0].f_code, frames[0].f_lasti)) is not None:
            stack += Code(wait, is_user=False, is_ours=False), 0
        return tuple(stack)

    def _code(self, frame: FrameType) -> Code:
        code = frame.f_code
        description = self._codes.get(code)
        if description is None:
            if len(self._codes) >= MAX_CODE:
                self._codes.clear()
            description = self._codes[code] = _describe(code, frame.f_globals.get("__name__"))
        return description


def other_key(key: str) -> str:
    return f"{key.partition(';')[0]};:__other__"


def profile_text(time_by_key: Any) -> str:
    """Return the time of a request by key as text: at most 20 lines and 8 kB of `microseconds key`, largest first."""
    if not isinstance(time_by_key, dict):
        return ""
    lines = [
        f"{round(spent / 1000)} {key}"
        for key, spent in sorted(time_by_key.items(), key=lambda item: -item[1])[:MAX_LINES]
    ]
    while len("\n".join(lines).encode()) > MAX_BYTES:
        lines.pop()
    return "\n".join(lines)


def _describe(code: CodeType, module: object) -> Code:
    file = code.co_filename
    folder, _, file_name = file.rpartition("/")
    name = module if isinstance(module, str) else ""
    if name == "__main__":
        name = file_name.removesuffix(".py")
    is_user = not (file.startswith(("<", *_NOT_USER)) or "/site-packages/" in file or "/dist-packages/" in file)
    is_ours = name.startswith("stagelens.")
    frame = CodeFrame(name, code.co_qualname, _short_folder(folder) + file_name, code.co_firstlineno)
    return Code(frame, is_user and not is_ours, is_ours)


# The first pass of the profiler may meet hundreds of functions, of few folders.
@functools.lru_cache(maxsize=4096)
def _short_folder(folder: str) -> str:
    entries = [entry.rstrip("/") + "/" for entry in sys.path if isinstance(entry, str) and entry]  # pyright: ignore[reportUnnecessaryIsInstance]
    longest = max((entry for entry in entries if f"{folder}/".startswith(entry)), key=len, default="")
    short = f"{folder}/".removeprefix(longest) if longest else folder.rpartition("/")[2] + "/"
    return short.removeprefix("/") if not folder else short
