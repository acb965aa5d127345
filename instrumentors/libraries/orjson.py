"""orjson: times the parsing and writing of JSON.

- A call below 20 µs is not recorded.
- Stagelens does not read the text or the objects.
"""

from __future__ import annotations

from types import MappingProxyType

from ..instrumentor import CallsInstrumentor


class OrjsonInstrumentor(CallsInstrumentor):
    """Instrumentor of the functions of `orjson`."""

    library = "orjson"
    title = "orjson"
    stages = MappingProxyType({"serialize": "`loads` and `dumps`"})
    not_timed = ("functions that a module took with `from orjson import loads` before `stagelens.instrument()`",)
    tested = MappingProxyType({"orjson": "3.13.0"})
    calls = MappingProxyType({"orjson": {"serialize": ("loads", "dumps")}})
