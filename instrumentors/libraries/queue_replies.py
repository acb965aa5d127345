"""Replies: what the requests of jobs wait for, found in the items of queues, and what a task waits for."""

from __future__ import annotations

import gc
import logging
import os
import queue
import sys
import threading
from collections.abc import Collection
from contextvars import Context
from functools import lru_cache
from pathlib import Path
from threading import get_ident
from types import CoroutineType, MemberDescriptorType
from typing import Any, Final

from .executors import attributes, length

# Types of the objects that a request waits for. A job with a future may also refer to a stop event, so futures come first.
# Types of modules that the process has not imported are missing.
FUTURES: Final[list[type]] = []
EVENTS: Final[list[type]] = [threading.Event]
QUEUES: Final[list[type]] = [queue.Queue]
# Types of one end of a queue, or around an event, and the attribute with the whole.
PARTS: Final[dict[type, str]] = {}
# Objects of one item; a larger one is data.
MAX_ITEMS: Final = 256
_DATA: Final = frozenset(
    {str, bytes, int, float, bool, complex, type(None), bytearray, memoryview, type, logging.LogRecord}
)
FUTURE, EVENT, QUEUE, NOTHING, CONTEXT, DICT, SEQUENCE, OBJECT = range(8)
# What each type of object in an item is, so that a job costs one lookup for each object.
_kinds: dict[type, int] = {}
MAX_KINDS: Final = 1024
_STANDARD: Final = os.path.dirname(os.__file__) + os.sep  # noqa: PTH120 - a text, as in code
# Names of coroutines that only wait.
_WAITS: Final = ("get", "receive", "wait", "sleep", "acquire", "join")


def add_type(types: list[type], kind: type) -> None:
    """Add *kind*, of a module that was imported just now, to *types*."""
    types.append(kind)
    _kinds.clear()
    base_of.cache_clear()
    has_loop.cache_clear()


def add_part(types: list[type], kind: type, attribute: str) -> None:
    """Add *kind*, one end or a part of what its *attribute* is, to *types*."""
    PARTS[kind] = attribute
    add_type(types, kind)


def whole(part: Any) -> Any:
    """Return the queue of which *part* is one end, or the event in it; else *part* itself."""
    attribute = PARTS.get(type(part))
    return part if attribute is None else getattr(part, attribute)


def kind_of(item: Any) -> int:
    kind = type(item)
    reply_kind = _kinds.get(kind)
    if reply_kind is None:
        reply_kind = _classify(kind)
        # One that is made in a function may be dropped.
        if "<locals>" not in kind.__qualname__:
            if len(_kinds) >= MAX_KINDS:
                _kinds.clear()
            _kinds[kind] = reply_kind
    return reply_kind


def _classify(kind: type) -> int:
    if kind in _DATA:
        return NOTHING
    for reply_kind, types in (
        (NOTHING, [type]),
        (FUTURE, FUTURES),
        (EVENT, EVENTS),
        (QUEUE, QUEUES),
        (CONTEXT, [Context]),
        (DICT, [dict]),
        (SEQUENCE, [tuple, list]),
    ):
        if issubclass(kind, tuple(types)):
            return reply_kind
    return OBJECT


def replies(item: Any) -> list[Any] | None:
    """Return the objects in *item* for which a request may wait, futures before events before queues; None with a context."""
    level: Collection[Any] = item if type(item) is tuple else (item,)
    replies_by_kind: list[list[Any]] = [[], [], []]
    cached_kind = _kinds.get
    left = MAX_ITEMS
    for depth in (0, 1, 2) if level is item else (-1, 0, 1, 2):
        left -= len(level)
        if left < 0:
            break
        below: list[Any] = []
        for inner in level:
            kind = cached_kind(type(inner), -1)
            if kind < 0:
                kind = kind_of(inner)
            if kind == NOTHING:
                continue
            if kind <= QUEUE:
                replies_by_kind[kind].append(whole(inner) if kind else inner)
            elif kind == CONTEXT:
                return None
            elif depth < 1 and len(below) <= left:
                below += _contents(inner, kind)
        if replies_by_kind[FUTURE] or not below:
            break
        level = below
    return replies_by_kind[FUTURE] or replies_by_kind[EVENT] or replies_by_kind[QUEUE]


def _contents(item: Any, kind: int) -> Collection[Any]:
    # Not the methods of a subclass, because no code of the user may run.
    if kind == SEQUENCE:
        size = tuple.__len__(item) if isinstance(item, tuple) else list.__len__(item)
        if size > MAX_ITEMS:
            return ()
        return [*(tuple.__iter__(item) if isinstance(item, tuple) else list.__iter__(item))]
    if kind == OBJECT:
        fields = attributes(item)
        if fields is None:
            slots = [member for base in type(item).__mro__ for member in vars(base).values()]
            return [slot.__get__(item) for slot in slots if type(slot) is MemberDescriptorType and _has(slot, item)]
        item = fields
    return () if dict.__len__(item) > MAX_ITEMS else [*dict.values(item)]


def _has(slot: Any, item: Any) -> bool:
    try:
        slot.__get__(item)
    except AttributeError:
        return False
    return True


# Only methods of Python's own classes: those of a subclass may do anything, such as wait for a lock that the caller holds.
def is_set(reply: Any) -> bool:
    """Return whether *reply* is set, or unusable."""
    kind = kind_of(reply)
    try:
        if kind != FUTURE:
            if hasattr(base_of(type(reply)), "ready"):  # of gevent, in C
                return base_of(type(reply)).ready(reply)
            state = attributes(reply) or {}
            # Of `threading` and of `asyncio`.
            return state.get("_flag", state.get("_value", True)) if kind == EVENT else length(reply) != 0
        if has_loop(type(reply)):
            return base_of(type(reply)).done(reply)
        return (attributes(reply) or {})["_state"] not in {"PENDING", "RUNNING"}
    except (AttributeError, KeyError, RuntimeError, TypeError):
        # Not initialized, as an object around another one: such a job is not followed.
        return True


def has_waiters(reply: Any) -> bool:
    """Return whether a greenlet waits for *reply*, an event of gevent: that call is in C, and nothing else shows it."""
    base = base_of(type(reply))
    return hasattr(base, "linkcount") and base.linkcount(reply) > 0


@lru_cache(MAX_KINDS)
def base_of(kind: type) -> Any:
    return next((base for base in (*FUTURES, *EVENTS) if issubclass(kind, base)), None)


@lru_cache(MAX_KINDS)
def has_loop(kind: type) -> bool:
    return hasattr(base_of(kind), "get_loop")


def is_running(child: Any) -> bool:
    if isinstance(child, threading.Thread):
        return threading.Thread.is_alive(child)
    return kind_of(child) == FUTURE and not is_set(child)


def running_loop() -> Any:
    asyncio = sys.modules.get("_asyncio")
    return None if asyncio is None else asyncio._get_running_loop()  # noqa: SLF001 - asyncio's own way, which never raises


def thread_or_task() -> int:
    loop = running_loop()
    if loop is not None:
        return id(current_task(loop))
    # Of the greenlet: with gevent, all requests have one thread.
    current_greenlet = getattr(sys.modules.get("gevent"), "getcurrent", None)
    return get_ident() if current_greenlet is None else id(current_greenlet())


def current_task(loop: Any) -> Any:
    return sys.modules["asyncio.tasks"].current_task(loop)


def future_of(task: Any) -> Any:
    """Return the future that *task* awaits in code of the user, None for any other wait."""
    waiter = getattr(task, "_fut_waiter", None)
    if type(waiter) not in FUTURES:
        return None
    coro, innermost = task.get_coro(), None
    while isinstance(coro, CoroutineType):
        coro, innermost = coro.cr_await, coro
    if innermost is None or type(coro).__name__ not in {"FutureIter", "generator"}:
        return None
    file = innermost.cr_code.co_filename
    if innermost.cr_code.co_name == "wait_for" and Path(file).parent.name == "asyncio":
        # In Python 3.11 it awaits a future of its own.
        inner = [future for future in gc.get_referents(innermost) if future is not waiter and kind_of(future) == FUTURE]
        return next((future for future in inner if type(future) in FUTURES), None if inner else waiter)
    return None if file.startswith(_STANDARD) or "/site-packages/" in file else waiter


def is_get() -> bool:
    """Return whether this task is only a `get` that another task, whose run it has, waits for."""
    loop = running_loop()
    task = None if loop is None else current_task(loop)
    return task is not None and only_waits(task.get_coro())


def only_waits(coro: Any, names: tuple[str, ...] = _WAITS) -> bool:
    """Return whether *coro* is a coroutine of asyncio, anyio or janus that waits and does no work."""
    if not isinstance(coro, CoroutineType) or coro.cr_code.co_name not in names:
        return False
    folder = Path(coro.cr_code.co_filename).parent
    return (folder.parent if folder.name == "streams" else folder).name in {"asyncio", "anyio", "janus"}
