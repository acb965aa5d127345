"""Probes: our code at the entry and at the end of a Python function, in the function's own frame.

Code that inspects its caller finds a wrapper (pydantic, `warnings.warn(…, stacklevel=2)`, SQLAlchemy), and a wrapper holds the arguments.
With a probe the function stays the same object; only its `__code__` is another one:

    token = enter(…)         # after the arguments are bound; in a coroutine when it first runs
    …                        # the body, with the token at the bottom of its stack of values
    leave(token, value)      # before each return
    failed(token, error)     # when an exception leaves the function, or a coroutine is closed

An exception that a signal handler raises in `leave` leads to `failed`, and goes on to the caller.
"""
# The format of bytecode: Python's `InternalDocs` and `Objects/locations.md`. A unit is an opcode and its argument, of a byte each.

from __future__ import annotations

import functools
import itertools
import opcode
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import CodeType, FunctionType
from typing import Any, Final, NamedTuple, TypeAlias

# Nothing is known yet of other interpreters and later versions.
SUPPORTED: Final = sys.implementation.name == "cpython" and sys.version_info < (3, 15)
# A generator and an asynchronous one are suspended in the code of others: their steps are timed one by one (`api.py`).
_GENERATOR: Final = 0x20 | 0x200

Unit: TypeAlias = tuple[int, int]
Position: TypeAlias = tuple[int | None, int | None, int | None, int | None]

_OP: Final = opcode.opmap
_JUMPS: Final = frozenset(opcode.hasjrel)
_BACKWARD: Final = frozenset(op for name, op in _OP.items() if "BACKWARD" in name or name == "END_ASYNC_FOR")
_RETURNS: Final = frozenset(_OP[name] for name in ("RETURN_VALUE", "RETURN_CONST") if name in _OP)
_CACHE: Final[Unit] = (_OP["CACHE"], 0)
_POP: Final[Unit] = (_OP["POP_TOP"], 0)
# Of no line, so that a debugger does not stop there.
_NOWHERE: Final[Position] = (None, None, None, None)


class Probe(NamedTuple):
    """Functions that run at the entry and at the end of a function. None of them may raise."""

    enter: Callable[..., Any]
    leave: Callable[[Any, Any], object] | None = None
    failed: Callable[[Any, BaseException], object] | None = None
    parameters: int = 0


def itself(first: Any, *_: Any) -> Any:
    return first


class _Instruction(NamedTuple):
    # From its first `EXTENDED_ARG` to its last `CACHE`, in units.
    start: int
    end: int
    op: int
    arg: int
    caches: int
    position: Position

    def target(self) -> int | None:
        if self.op not in _JUMPS:
            return None
        return self.end + (-self.arg if self.op in _BACKWARD else self.arg)


class _Piece(NamedTuple):
    # A jump to the instruction leads to what is before it.
    before: list[Unit]
    instruction: _Instruction
    after: list[Unit]


class _Handler(NamedTuple):
    start: int
    end: int
    target: int
    depth: int
    lasti: int


def can_be_probed(function: Any, probe: Probe) -> bool:
    """Return whether *function* is a function or a coroutine function written in Python, with the parameters of *probe*."""
    if not SUPPORTED or type(function) is not FunctionType:
        return False
    code = function.__code__
    return not code.co_flags & _GENERATOR and code.co_argcount >= probe.parameters


def probed(code: CodeType, probe: Probe) -> CodeType:
    """Return *code*, that of a function that `can_be_probed`, with *probe*."""
    instructions = list(_instructions(code))
    resume = next(instruction for instruction in instructions if instruction.op == _OP["RESUME"])
    enter, leave, failed = range(len(code.co_consts), len(code.co_consts) + 3)
    prologue = _extended(_call(enter, [_parameter(code, index) for index in range(probe.parameters)]))
    # Copied from below what is called and its NULL: the token and the value; below the error there is where it was raised.
    epilogue = [] if probe.leave is None else [*_call(leave, [(_OP["COPY"], 4)] * 2), _POP]
    handler = [*_call(failed, [(_OP["COPY"], 5), (_OP["COPY"], 4)]), _POP, (_OP["RERAISE"], 1)]
    pieces: list[_Piece] = []
    for instruction in instructions:
        if instruction.op in _RETURNS:
            constant = [] if instruction.op == _OP["RETURN_VALUE"] else [(_OP["LOAD_CONST"], instruction.arg)]
            before = _extended([*constant, *epilogue, (_OP["SWAP"], 2), _POP])
            pieces.append(_Piece(before, instruction._replace(op=_OP["RETURN_VALUE"], arg=0), []))
        else:
            pieces.append(_Piece([], instruction, prologue if instruction is resume else []))
    units, places = _assembled(pieces)
    handlers = [
        _Handler(places[start], places[end], places[target], depth + (start >= resume.end), lasti)
        for start, end, target, depth, lasti in _handlers(code)
    ]
    if probe.failed is not None:
        added = [(unit, _NOWHERE) for unit in _extended(handler)]
        handlers = _with_failed(handlers, places[resume.end], len(units), len(units) + len(added))
        units += added
    return code.replace(
        co_code=bytes(itertools.chain.from_iterable(unit for unit, _ in units)),
        co_consts=(*code.co_consts, probe.enter, probe.leave, probe.failed, _Original(code)),
        co_stacksize=code.co_stacksize + 6 + probe.parameters,
        co_exceptiontable=b"".join(map(_row, handlers)),
        co_linetable=_line_table(code.co_firstlineno, [position for _, position in units]),
    )


def without_signals(function: FunctionType) -> FunctionType:
    """Let no signal handler run inside of *function*, which must call nothing and have no loop."""
    units = zip(function.__code__.co_code[::2], function.__code__.co_code[1::2], strict=True)
    changed = (bytes((op, 2 if op == _OP["RESUME"] else arg)) for op, arg in units)
    function.__code__ = function.__code__.replace(co_code=b"".join(changed))
    return function


class _Original:
    __slots__ = ("code",)

    def __init__(self, code: CodeType) -> None:
        self.code = code


def unprobed(code: CodeType) -> CodeType:
    """Return what *code* was before it got a probe; another code unchanged."""
    last = code.co_consts[-1] if code.co_consts else None
    return last.code if isinstance(last, _Original) else code


def _with_failed(handlers: Sequence[_Handler], entered: int, body_end: int, end: int) -> list[_Handler]:
    # All of a coroutine is inside a handler of Python's own, from Python 3.12 on, which stays outside of ours.
    outer = {handler.target: handler for handler in handlers if handler.start < entered}
    if outer:
        halves = [
            (handler._replace(end=min(handler.end, entered)), handler._replace(start=max(handler.start, entered)))
            for handler in handlers
        ]
        body = [
            handler._replace(target=body_end, depth=1, lasti=1)
            if handler.start >= entered and handler.target in outer
            else handler
            for handler in itertools.chain.from_iterable(halves)
            if handler.start < handler.end
        ]
    else:
        free = [entered, *(at for handler in handlers for at in (handler.start, handler.end)), body_end]
        gaps = zip(free[::2], free[1::2], strict=True)
        body = sorted([*handlers, *(_Handler(*gap, body_end, 1, 1) for gap in gaps if gap[0] < gap[1])])
    return [*body, *(handler._replace(start=body_end, end=end) for handler in outer.values())]


def _instructions(code: CodeType) -> Iterator[_Instruction]:
    units = list(zip(code.co_code[::2], code.co_code[1::2], strict=True))
    positions = list(code.co_positions())
    start = at = arg = 0
    while at < len(units):
        op, low = units[at]
        arg = arg << 8 | low
        at += 1
        if op == _OP["EXTENDED_ARG"]:
            continue
        end = at
        while end < len(units) and units[end][0] == _CACHE[0]:
            end += 1
        yield _Instruction(start, end, op, arg, end - at, positions[at - 1])
        start, at, arg = end, end, 0


def _parameter(code: CodeType, index: int) -> Unit:
    # A parameter that functions inside use is a cell.
    is_cell = code.co_varnames[index] in code.co_cellvars
    return _OP["LOAD_DEREF" if is_cell else "LOAD_FAST"], index


@functools.cache
def _template(arguments: int) -> Sequence[_Instruction]:
    call = compile(f"f({', '.join('x' * arguments)})", "", "eval")
    return [instruction for instruction in _instructions(call) if instruction.op not in {_OP["RESUME"], *_RETURNS}]


def _call(constant: int, arguments: Sequence[Unit]) -> list[Unit]:
    operands = iter([(_OP["LOAD_CONST"], constant), *arguments])
    units: list[Unit] = []
    for instruction in _template(len(arguments)):
        units.append(next(operands) if instruction.op == _OP["LOAD_NAME"] else (instruction.op, instruction.arg))
        units += [_CACHE] * instruction.caches
    return units


def _extensions(arg: int) -> int:
    return max(arg.bit_length() - 1, 0) // 8


def _with_arg(op: int, arg: int, extensions: int) -> list[Unit]:
    return [(_OP["EXTENDED_ARG"], arg >> 8 * i & 0xFF) for i in range(extensions, 0, -1)] + [(op, arg & 0xFF)]


def _extended(units: Iterable[Unit]) -> list[Unit]:
    return [unit for op, arg in units for unit in _with_arg(op, arg, _extensions(arg))]


def _assembled(pieces: Sequence[_Piece]) -> tuple[list[tuple[Unit, Position]], dict[int, int]]:
    extensions = [0] * len(pieces)
    while True:
        # A jump over an insertion is longer, and may take more units by that.
        places, args = _places(pieces, extensions)
        needed = [max(_extensions(arg), extension) for arg, extension in zip(args, extensions, strict=True)]
        if needed == extensions:
            break
        extensions = needed
    units: list[tuple[Unit, Position]] = []
    follows = [*(piece.instruction.position for piece in pieces[1:]), _NOWHERE]
    for (before, piece, after), arg, extension, position in zip(pieces, args, extensions, follows, strict=True):
        piece_units = [*before, *_with_arg(piece.op, arg, extension), *[_CACHE] * piece.caches]
        units += ((unit, piece.position) for unit in piece_units)
        # A debugger stops once at the first line.
        units += ((unit, position) for unit in after)
    return units, places


def _places(pieces: Sequence[_Piece], extensions: Sequence[int]) -> tuple[dict[int, int], list[int]]:
    at = 0
    places: dict[int, int] = {}
    ends: list[int] = []
    for (before, instruction, after), extension in zip(pieces, extensions, strict=True):
        places[instruction.start] = at
        ends.append(at + len(before) + extension + 1 + instruction.caches)
        at = ends[-1] + len(after)
    places[pieces[-1].instruction.end] = at
    targets = [instruction.target() for _, instruction, _ in pieces]
    return places, [
        instruction.arg if target is None else abs(places[target] - end)
        for (_, instruction, _), target, end in zip(pieces, targets, ends, strict=True)
    ]


def _handlers(code: CodeType) -> Iterator[_Handler]:
    numbers: list[int] = []
    number = 0
    for byte in code.co_exceptiontable:
        number = number << 6 | byte & 0x3F
        if not byte & 0x40:
            numbers.append(number)
            number = 0
    for start, size, target, depth in zip(*[iter(numbers)] * 4, strict=True):
        yield _Handler(start, start + size, target, depth >> 1, depth & 1)


def _row(handler: _Handler) -> bytes:
    start, end, target, depth, lasti = handler
    numbers = (start, end - start, target, depth << 1 | lasti)
    first, *rest = b"".join(_joined(_digits(number)[::-1]) for number in numbers)
    return bytes((first | 0x80, *rest))


def _digits(number: int) -> list[int]:
    digits = [number & 0x3F]
    while number := number >> 6:
        digits.append(number & 0x3F)
    return digits


# Nearly all of them are small: this is most of the work of a probe.
@functools.lru_cache(4096)
def _number(number: int) -> bytes:
    return _joined(_digits(number))


def _joined(digits: Sequence[int]) -> bytes:
    return bytes((*(digit | 0x40 for digit in digits[:-1]), digits[-1]))


def _line_table(line: int, positions: Iterable[Position]) -> bytes:
    rows: list[bytes] = []
    for position, group in itertools.groupby(positions):
        size = len(list(group))
        start, end, column, end_column = position
        # A row has at most eight units.
        for units in (*[8] * (size // 8), *[size % 8] * (size % 8 > 0)):
            if start is None:
                rows.append(bytes((0x80 | 15 << 3 | units - 1,)))
                continue
            numbers = [(start - line) << 1 if start >= line else (line - start) << 1 | 1]
            kind = 13
            if end is not None and column is not None and end_column is not None:
                kind = 14
                numbers += (end - start, column + 1, end_column + 1)
            rows.append(bytes((0x80 | kind << 3 | units - 1,)) + b"".join(map(_number, numbers)))
            line = start
    return b"".join(rows)
