"""Frames of a request: those of its thread, of its task in asyncio, or of a child task that does its work while the task waits for it.

Some waits have no frame: in a lock or queue written in C, or for a future. The instruction that runs shows them.
"""

from __future__ import annotations

import asyncio
import contextlib
import dis
import functools
import gc
import inspect
import itertools
import random
import sys
import threading
from collections.abc import Callable, Collection, Generator
from contextvars import Context
from importlib import import_module
from importlib.util import find_spec
from types import AsyncGeneratorType, CellType, CodeType, CoroutineType, FrameType, GeneratorType
from typing import Any, NamedTuple

from ...core.code_stack import CodeFrame
from ..records import Marks, current

# Frames of one stack that are read, from the innermost.
MAX_DEPTH = 150
# Libraries whose frames are only the wait of their caller; and where that is no wait for a task.
_WAITS = frozenset({"asyncio", "anyio"})
_OWN_WAITS = frozenset({"asyncio.base_events", "asyncio.selector_events", "asyncio.streams", "asyncio.subprocess"})
# Libraries of the frames of a thread whose event loop waits.
_RUNS_LOOP = frozenset({"asyncio", "selectors"})
# Functions of asyncio that wait for tasks, and for nothing else.
_JOINS = frozenset({"_wait", "_wait_for_one", "wait", "wait_for"})
# Built-in iterators that `await` and `async for` put between two coroutines.
_ITERATORS = frozenset(
    {"FutureIter", "coroutine_wrapper", "async_generator_asend", "async_generator_athrow", "anext_awaitable"}
)
# Methods of what is written in C, such as `threading.Lock`, `queue.SimpleQueue` and all of gevent.
_C_WAITS = frozenset({"__enter__", "acquire", "get", "put", "recv", "recv_bytes", "result", "wait"})
_AWAITS = frozenset({"SEND", "YIELD_VALUE"})
# Modules of Python that wait for events, items and threads by locks, and their functions that wait for the lock itself.
_SIGNALS = (threading.__file__, threading.__file__.removesuffix("threading.py") + "multiprocessing")
_LOCKS = frozenset({"Condition.__enter__", "_RLock.acquire"})
_ENTERS, _WITH = frozenset({"__enter__", "acquire"}), dis.opmap["WITH_EXCEPT_START"]
# Calls `__enter__` from a variable.
_ENTER_CONTEXT = contextlib.ExitStack.enter_context.__code__


class _Chain(NamedTuple):
    """Frames of a task from the innermost, their coroutines, and the object that the innermost one waits for."""

    frames: list[FrameType]
    owners: list[Any]
    awaited: Any = None


class RequestTasks:
    def __init__(self, is_user: Callable[[FrameType], bool], rng: random.Random) -> None:
        self._is_user = is_user
        self._rng = rng
        self._by_loop: dict[Any, dict[int, list[Any]]] = {}

    def forget(self) -> None:
        self._by_loop.clear()

    def frames(self, task: Any, marks: Marks, top: FrameType | None, request_tasks: Collection[Any]) -> list[FrameType]:
        """Return the frames of the request from the innermost; *top* is that on the thread of *task*; no child is in *request_tasks*."""
        on_thread = thread_frames(top)
        running = _running(task, on_thread)
        if running:
            return running
        chain = _await_chain(task)
        around = self._around_tasks(chain)
        child = [] if around is None else self._child(task.get_loop(), marks, on_thread, request_tasks)
        return child + chain.frames[around[0] :] if around and child else chain.frames

    def of_thread(self, marks: Marks, top: FrameType) -> list[FrameType]:
        """Return the frames of the thread that works for the request, or of a task of the event loop that it runs."""
        frames = thread_frames(top)
        for position, frame in enumerate(frames):
            if _package(frame) not in _RUNS_LOOP:
                break
            if frame.f_code.co_qualname == "BaseEventLoop.run_forever":
                child = self._child(frame.f_locals["self"], marks, frames, ())
                return child + frames[position:] if child else frames
        return frames

    def _around_tasks(self, chain: _Chain) -> tuple[int, bool] | None:
        joins = any(type(referent).__name__ == "_GatheringFuture" for referent in gc.get_referents(chain.awaited))
        is_signal = True
        for position, frame in enumerate(chain.frames):
            module, code = str(frame.f_globals.get("__name__")), frame.f_code
            if module.partition(".")[0] in _WAITS:
                if not position and (module in _OWN_WAITS or code.co_name == "sleep"):
                    return None
                joins = joins or code.co_qualname.startswith("TaskGroup.")
                joins = joins or (module == "asyncio.tasks" and code.co_name in _JOINS)
            elif joins or _has_group(chain.owners[position]):
                return position, True
            elif self._is_user(frame):
                return (position, False) if is_signal else None
            else:
                # The library itself waits, unless it has tasks.
                is_signal = False
        return None

    def _child(
        self, loop: Any, marks: Marks, on_thread: list[FrameType], request_tasks: Collection[Any]
    ) -> list[FrameType]:
        """Return the frames of the child task that runs; else of one that waits, innermost tasks and code of the user first."""
        waiting: list[tuple[tuple[bool, bool, bool, int], list[FrameType]]] = []
        for child in self._tasks_of(loop).get(id(marks), ()):
            if child in request_tasks or child.done():
                continue
            running = _running(child, on_thread)
            if running:
                return running
            chain = _await_chain(child)
            around = self._around_tasks(chain)
            is_users = any(map(self._is_user, chain.frames))
            # A server has tasks that wait for a disconnect or send a ping.
            packages = 0 if is_users else len({_package(frame) for frame in chain.frames})
            rank = (around is None or not around[1], is_users, around is None, packages)
            waiting.append((rank, chain.frames))
        best = max((rank for rank, _ in waiting), default=None)
        return self._rng.choice([frames for rank, frames in waiting if rank == best]) if waiting else []

    def _tasks_of(self, loop: Any) -> dict[int, list[Any]]:
        tasks = self._by_loop.get(loop)
        if tasks is None:
            tasks = self._by_loop[loop] = {}
            # The loop changes the set meanwhile.
            with contextlib.suppress(RuntimeError):
                for task in asyncio.all_tasks(loop):
                    # Other code may register anything.
                    if isinstance(task, asyncio.Task):  # pyright: ignore[reportUnnecessaryIsInstance]
                        tasks.setdefault(id(_marks_of(task)), []).append(task)
        return tasks


def thread_frames(top: FrameType | None) -> list[FrameType]:
    frames: list[FrameType] = []
    while top is not None and len(frames) < MAX_DEPTH:
        frames.append(top)
        top = top.f_back
    return frames


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__")).partition(".")[0]


def _marks_of(task: Any) -> Marks | None:
    if sys.version_info >= (3, 12):
        return task.get_context().get(current)
    context = next((referent for referent in gc.get_referents(task) if isinstance(referent, Context)), None)
    return None if context is None else context.get(current)


def _has_group(coroutine: Any) -> bool:
    held = gc.get_referents(coroutine)
    # Inner functions use some.
    held += gc.get_referents(*(referent for referent in held if isinstance(referent, CellType)))
    groups = (referent for referent in held if type(referent).__name__ == "TaskGroup")
    return any(group._tasks for group in groups if type(group).__module__.partition(".")[0] in _WAITS)  # noqa: SLF001 - there is no public name for it


def _running(task: Any, on_thread: list[FrameType]) -> list[FrameType]:
    root: Any = getattr(task.get_coro(), "cr_frame", None)
    position = next((position for position, frame in enumerate(on_thread) if frame is root), -1)
    return on_thread[: position + 1]


def _await_chain(task: Any) -> _Chain:
    frames: list[FrameType] = []
    owners: list[Any] = []
    awaited: Any = task.get_coro()
    for _ in range(MAX_DEPTH):
        frame, inner = _step(awaited)
        if frame is not None:
            frames.append(frame)
            owners.append(awaited)
        if inner is None:
            break
        awaited = inner
    return _Chain(frames[::-1], owners[::-1], awaited)


def _step(awaited: Any) -> tuple[FrameType | None, Any]:
    if isinstance(awaited, CoroutineType):
        return awaited.cr_frame, awaited.cr_await
    if isinstance(awaited, GeneratorType):
        return awaited.gi_frame, awaited.gi_yieldfrom
    if isinstance(awaited, AsyncGeneratorType):
        return awaited.ag_frame, awaited.ag_await
    if isinstance(awaited, asyncio.Task):
        return None, awaited.get_coro() if not awaited.done() else None  # pyright: ignore[reportUnknownMemberType]
    if type(awaited).__name__ in _ITERATORS:
        for inner in gc.get_referents(awaited):
            if isinstance(inner, (CoroutineType, AsyncGeneratorType, asyncio.Task)):
                return None, inner  # pyright: ignore[reportUnknownVariableType]
    return None, None


@functools.lru_cache(maxsize=4096)
def wait_at(code: CodeType, offset: int) -> CodeFrame | None:
    """Return the wait of a function that is at the instruction at *offset* and has called no other function; None for work."""
    before = [instruction for instruction in dis.get_instructions(code) if instruction.offset <= offset]
    if not before or before[-1].offset != offset:
        return None
    at = before.pop()
    if at.opname in _AWAITS and code.co_flags & inspect.CO_COROUTINE:
        return CodeFrame("asyncio", "await")
    if at.opname == "BEFORE_WITH" or (at.opname == "CALL" and before and before[-1].opname == "LOAD_SPECIAL"):
        names = [
            instruction.argval
            for instruction in before
            if instruction.opname.startswith("LOAD_") and isinstance(instruction.argval, str)
        ]
        return CodeFrame("_thread", f"with {names[-1]}") if names else None
    # Python 3.11 calls some functions at the instruction before.
    if not at.opname.startswith(("CALL", "PRECALL")) or at.positions is None:
        return None
    # The attribute is called where the call begins.
    methods = [
        instruction.argval
        for instruction in before
        if instruction.opname in {"LOAD_ATTR", "LOAD_METHOD"} and instruction.positions is not None
        if (instruction.positions.lineno, instruction.positions.col_offset)
        == (at.positions.lineno, at.positions.col_offset)
    ]
    return CodeFrame("_thread", methods[-1]) if methods and methods[-1] in _C_WAITS else None


@functools.lru_cache(maxsize=4096)
def is_lock_wait(code: CodeType, offset: int) -> bool:
    """Return whether a function that is at the instruction at *offset*, and has called no other one, waits for a lock."""
    # To read all instructions takes long, and most functions contain no lock.
    is_possible = _WITH in code.co_code or not _ENTERS.isdisjoint(code.co_names)
    wait = wait_at(code, offset) if is_possible else None
    if wait is None or not (wait.function in _ENTERS or wait.function.startswith("with ")):
        return code is _ENTER_CONTEXT
    return code.co_qualname in _LOCKS or not code.co_filename.startswith(_SIGNALS)


@functools.cache
def _list_of_interpreters() -> Callable[[], list[object]]:
    alone: list[object] = [None]
    if sys.version_info >= (3, 13):
        return import_module("_interpreters").list_all if find_spec("_interpreters") else alone.copy
    # Its own list may destroy one that begins: there may be others from the import of the module on that makes them.
    is_main = import_module("_thread")._is_main_interpreter()  # noqa: SLF001 - `threading` has it from there
    return lambda: alone if is_main and "_xxsubinterpreters" not in sys.modules else []


def current_frames() -> dict[int, FrameType]:
    """Return the innermost frame of each thread; none while there are other interpreters.

    `sys._current_frames` of Python 3.12 to 3.15 also reads the frames of those, whose threads do not wait meanwhile, and crashes.
    """
    if sys.version_info < (3, 12):
        return sys._current_frames()  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - the documented way
    alone = itertools.takewhile((1).__eq__, map(len, iter(_list_of_interpreters(), None)))
    frames = iter(sys._current_frames, None)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - the documented way
    # Both happen in one call, in which no other thread can make an interpreter.
    return next(zip(alone, frames, strict=False), (1, dict[int, FrameType]()))[1]


@contextlib.contextmanager
def no_collection() -> Generator[None]:
    """Prevent garbage collections while the frames of other threads are read, in Python 3.11.

    That version may collect while it creates the frame object of a running function. If a finalizer lets the function end meanwhile,
    the object refers to memory of something else, and the process crashes sooner or later.
    """
    if sys.version_info >= (3, 12) or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
