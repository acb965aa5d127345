"""Waits that no function of Python shows: in a lock or queue written in C, or for a future, by the instruction that runs."""

from __future__ import annotations

import dis
import functools
import inspect
from types import CodeType

from ...core.code_stack import CodeFrame

# Methods of what is written in C, such as `threading.Lock`, `queue.SimpleQueue` and all of gevent.
_METHODS = frozenset({"acquire", "get", "put", "recv", "recv_bytes", "result", "wait"})
_AWAITS = frozenset({"SEND", "YIELD_VALUE"})


@functools.lru_cache(maxsize=4096)
def wait_at(code: CodeType, offset: int) -> CodeFrame | None:
    """Return the wait of a function that is at the instruction at *offset* and has called no other function; None for work."""
    before = [each for each in dis.get_instructions(code) if each.offset <= offset]
    if not before or before[-1].offset != offset:
        return None
    at = before.pop()
    if at.opname in _AWAITS and code.co_flags & inspect.CO_COROUTINE:
        return CodeFrame("asyncio", "await")
    if at.opname == "BEFORE_WITH" or (at.opname == "CALL" and before and before[-1].opname == "LOAD_SPECIAL"):
        names = [each.argval for each in before if each.opname.startswith("LOAD_") and isinstance(each.argval, str)]
        return CodeFrame("_thread", f"with {names[-1]}") if names else None
    if not at.opname.startswith("CALL") or at.positions is None:
        return None
    # The attribute is called where the call begins.
    methods = [
        each.argval
        for each in before
        if each.opname in {"LOAD_ATTR", "LOAD_METHOD"} and each.positions is not None
        if (each.positions.lineno, each.positions.col_offset) == (at.positions.lineno, at.positions.col_offset)
    ]
    return CodeFrame("_thread", methods[-1]) if methods and methods[-1] in _METHODS else None
