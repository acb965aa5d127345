"""JSON: times the parsing and writing of large bodies by the `json` module of Python.

- A call below 20 µs, about 2 kB, is not recorded. It costs less than a microsecond more.
- Stagelens does not read the text or the objects.
"""

from __future__ import annotations

from types import MappingProxyType

from ..instrumentor import CallsInstrumentor


class JsonInstrumentor(CallsInstrumentor):
    """Instrumentor of the functions of `json`."""

    library = "json"
    title = "JSON"
    stages = MappingProxyType({"serialize": "`loads`, `load`, `dumps` and `dump`"})
    not_timed = (
        "functions that a module took with `from json import loads` before `stagelens.instrument()`. With `stagelens run` there are none",
        "`JSONEncoder` and `JSONDecoder` without these functions",
    )
    calls = MappingProxyType({"json": {"serialize": ("loads", "load", "dumps", "dump")}})
