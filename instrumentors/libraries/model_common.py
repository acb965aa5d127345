"""Shared by the libraries of models: the outermost call is one stage, and in a plain script one request."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextvars import ContextVar
from typing import Any, Final
from weakref import WeakKeyDictionary

from ...core.stages import LOAD_COMPILE, LOAD_READ
from .. import scripts
from ..instrumentor import LongCall, Probed, log_failure, timed
from ..loads import loads
from ..probes import Probe
from ..records import Marks, clock, current, has_capacity
from .onnxruntime_session import model_name

# Whether a model call or a training runs in this context: the model calls inside belong to it.
inside: Final[ContextVar[bool]] = ContextVar("stagelens_inside_model", default=False)


def class_name(model: Any) -> str:
    return type(model).__name__


class _Inside:
    """A call inside of which model calls are neither requests nor stages."""

    __slots__ = ()

    def __init__(self) -> None:
        inside.set(True)

    def end(self) -> None:
        inside.set(False)


class _Preparation(LongCall):
    __slots__ = ()

    def __init__(self, marks: Marks, stage: str) -> None:
        super().__init__(marks, stage)
        inside.set(True)

    def end(self) -> None:
        inside.set(False)
        super().end()


# For a function whose model calls are neither requests nor stages.
without_calls: Final = Probed.until_end(lambda: None if inside.get() else _Inside())


def preparation(stage: str) -> Probed:
    """Return what records a method that prepares the input of a model, or its output, as *stage*; not inside of a model call."""

    def enter() -> object:
        marks = None if inside.get() else current.get()
        return None if marks is None else _Preparation(marks, stage)

    return Probed.until_end(enter)


class _ModelCall(LongCall):
    __slots__ = ("_name", "_rows", "_scope", "outcome")

    def __init__(self, marks: Marks, name: str, rows: int, scope: scripts.Scope | None) -> None:
        super().__init__(marks, "forward")
        self._name, self._rows, self._scope = name, rows, scope
        # The name of the raised exception and the class of the result, neither of which is kept.
        self.outcome: tuple[str, type] = "", object
        inside.set(True)

    def end(self) -> None:
        inside.set(False)
        super().end()
        if has_capacity(self.marks):
            self.marks.extend(("@model", self._name, 0, *(("@batch", self._rows, 0) if self._rows else ())))
        scope, self._scope = self._scope, None
        if scope is not None:
            scripts.finish(scope, self._name, *self.outcome)


def model_call(
    name_of: Callable[[Any], str] = class_name, rows: Callable[[Any], int] | None = None, *, is_request: bool = True
) -> Probed:
    """Return what records the outermost call of a method as `forward`, with the name and the batch size of the model."""

    def enter(model: Any, data: Any) -> object:
        if inside.get():
            return None
        marks, scope = current.get(), None
        if marks is None:
            scope = scripts.begin() if is_request and scripts.on else None
            if scope is None:
                return None
            marks, _ = scope
        return _ModelCall(marks, _name(name_of, model), _rows(rows or rows_of, data), scope)

    def leave(call: _ModelCall | None, value: object) -> None:
        if call is not None:
            call.outcome = "", type(value)
            call.end()

    def failed(call: _ModelCall | None, error: BaseException) -> None:
        if call is not None:
            call.outcome = type(error).__qualname__, object
            call.end()

    return Probed(Probe(enter, leave, failed, parameters=2))


def subclasses(owner: type) -> Iterator[type]:
    for subclass in owner.__subclasses__():
        yield subclass
        yield from subclasses(subclass)


def folder_name(path: Any) -> str:
    """Return the name of a folder with a model, which may be one in the cache of the Hugging Face hub; never raises.

    >>> folder_name("/models/resnet/1/"), folder_name(None)
    ('resnet', '')
    """
    try:
        name = model_name(os.path.join(path, "model")) if isinstance(path, (str, os.PathLike)) else ""  # noqa: PTH118 - importing pathlib would cost the host time
    except Exception:
        log_failure("naming a model that is loaded")
        return ""
    return name.rpartition("--")[2] if name.startswith("models--") else name


# Names of models that do not know their folders.
_created: WeakKeyDictionary[Any, str] = WeakKeyDictionary()


def creation(original: Any) -> Any:
    """Wrap the `__init__` of a model, whose first argument is its folder or file, as `load`, also outside of requests."""
    load = timed("load")(original)

    def __init__(self: Any, *args: Any, **options: Any) -> None:  # noqa: N807 - shown in tracebacks
        path = args[0] if args else options.get("model_path", options.get("models_path"))
        name = folder_name(path).removesuffix(".gguf")
        loading = loads.begin(name, reading=True)
        try:
            load(self, *args, **options)
        finally:
            loads.end(loading, LOAD_READ.key)
        try:
            _created[self] = name
        except Exception:
            log_failure("naming a model that was loaded")

    return __init__


def created_name(model: Any) -> str:
    """Return the name of the folder or file of a model with `creation`; else its class name."""
    return _created.get(model) or class_name(model)


def note_compilation(name: str, started: int) -> None:
    """Record a call of function *name* that compiled it as `load`, from *started* until now."""
    ended = clock()
    loads.note(LOAD_COMPILE.key, name, "", started, ended)
    marks = current.get()
    if marks is not None and has_capacity(marks):
        marks.extend(("load", started, ended))


def _name(name_of: Callable[[Any], str], model: Any) -> str:
    try:
        return name_of(model)
    except Exception:
        log_failure("naming a model")
        return class_name(model)


def _rows(rows: Callable[[Any], int], data: Any) -> int:
    try:
        return rows(data)
    except Exception:
        log_failure("describing a model call")
        return 0


def rows_of(data: Any) -> int:
    """Return the number of rows of a table (an array, a data frame, a `DMatrix`) or of a list of rows; 0 if unknown.

    >>> rows_of([[1, 2], [3, 4]]), rows_of([1, 2]), rows_of(memoryview(bytes(6)).cast("B", (2, 3)))
    (2, 0, 2)
    """
    count = getattr(data, "num_row", None)
    if count is not None:
        return int(count())
    shape: Any = getattr(data, "shape", None)
    if hasattr(shape, "__len__"):
        return int(shape[0]) if len(shape) > 1 else 0
    return len(data) if isinstance(data, list) and data and isinstance(data[0], Sized) else 0  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def rows_of_inputs(inputs: Any) -> int:
    """Return the number of rows of the first tensor in *inputs*, which may be one tensor, a sequence or a mapping of tensors.

    >>> rows_of_inputs({"ids": [memoryview(bytes(6)).cast("B", (2, 3))]}), rows_of_inputs([])
    (2, 0)
    """
    while isinstance(inputs, (list, tuple, Mapping)):
        values: Iterable[Any] = inputs.values() if isinstance(inputs, Mapping) else inputs
        inputs = next(iter(values), None)
    return rows_of(inputs)
