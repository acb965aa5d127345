"""Formats of imported files, detected from their keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple, TypeAlias

from ..otlp.json_encoding import Object
from .kineto import KINETO_KEYS, read_kineto
from .onnxruntime import read_onnxruntime
from .otlp_files import OTLP_KEYS, read_otlp
from .source import ImportFile, ImportFileError
from .triton import read_triton
from .vllm import VLLM_KEYS, read_vllm

# Reader that yields exports as OTLP/JSON, each with its position in the file; the service is for requests without one.
FormatReader: TypeAlias = Callable[[ImportFile, str | None], Iterator[tuple[str, Object]]]

# Number of names that are checked before the format of a file counts as unknown.
_MAX_NAMES = 1000


class Format(NamedTuple):
    title: str
    # Keys that only this format has, in its top-level object (*where* is "") or in the objects of its top-level list ("item").
    keys: frozenset[str]
    where: str
    read: FormatReader


FORMATS = (
    Format("OTLP JSON (also a run saved by `stagelens run --save`)", frozenset(OTLP_KEYS), "", read_otlp),
    Format("a torch.profiler trace (Kineto; also vLLM's)", frozenset(KINETO_KEYS), "", read_kineto),
    Format("a vLLM benchmark result (`vllm bench serve`)", frozenset(VLLM_KEYS), "", read_vllm),
    Format(
        "a Triton JSON trace (`--trace-config mode=triton`)",
        frozenset(("timestamps", "model_name", "activity")),
        "item",
        read_triton,
    ),
    Format("an ONNX Runtime profile (`enable_profiling`)", frozenset(("ph",)), "item", read_onnxruntime),
)


def format_of(source: ImportFile) -> Format:
    names: list[str] = []
    try:
        for where, name in islice(source.keys(), _MAX_NAMES):
            detected = next(
                (file_format for file_format in FORMATS if where == file_format.where and name in file_format.keys),
                None,
            )
            if detected is not None:
                return detected
            names.append(name)
        why = (
            f"its first names are {', '.join(map(repr, names[:5]))}"
            if names
            else "it has no names to detect the format"
        )
    except ImportFileError as error:
        why = str(error)
    read = "".join(f"\n  {file_format.title}" for file_format in FORMATS)
    msg = f"{source.path}: has no supported format: {why}. Supported formats:{read}"
    raise ImportFileError(msg)
