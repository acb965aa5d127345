"""Which format a file has, by the names in it: one line registers a format."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple, TypeAlias

from ..otlp.json_fields import Object
from . import kineto, onnxruntime, otlp, triton, vllm
from .source import ImportFileError, Source

# Yields exports in OTLP's JSON form, each with its place in the file; the service is that of requests that name none.
Read: TypeAlias = Callable[[Source, str | None], Iterator[tuple[str, Object]]]

# Names looked at before a file counts as unknown.
_MOST_NAMES = 1000


class Format(NamedTuple):
    """A format.

    Args:
        title: What it is called.
        keys: Names that only this one has, in its top object or in the objects of its top list.
        where: `""` for the top object, `"item"` for the top list.
        read: Reads it.
    """

    title: str
    keys: frozenset[str]
    where: str
    read: Read


FORMATS = (
    Format("OTLP JSON (also a run saved by `stagelens run --save`)", frozenset(otlp.KEYS), "", otlp.read),
    Format("a torch.profiler trace (Kineto; also vLLM's)", frozenset(kineto.KEYS), "", kineto.read),
    Format("a vLLM benchmark result (`vllm bench serve`)", frozenset(vllm.KEYS), "", vllm.read),
    Format(
        "a Triton JSON trace (`--trace-config mode=triton`)",
        frozenset(("timestamps", "model_name", "activity")),
        "item",
        triton.read,
    ),
    Format("an ONNX Runtime profile (`enable_profiling`)", frozenset(("ph",)), "item", onnxruntime.read),
)


def format_of(source: Source) -> Format:
    """Return the format of *source*.

    Raises:
        ImportFileError: It is none that is read.
    """
    names: list[str] = []
    try:
        for where, name in islice(source.keys(), _MOST_NAMES):
            found = next((each for each in FORMATS if where == each.where and name in each.keys), None)
            if found is not None:
                return found
            names.append(name)
        why = f"its names begin with {', '.join(map(repr, names[:5]))}" if names else "it has no names to go by"
    except ImportFileError as error:
        why = str(error)
    read = "".join(f"\n  {each.title}" for each in FORMATS)
    msg = f"{source.path}: is in none of the formats that are read: {why}. They are{read}"
    raise ImportFileError(msg)
