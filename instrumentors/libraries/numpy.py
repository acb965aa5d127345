"""NumPy: times reading and writing of arrays.

- A call below 20 µs is not recorded.
- Stagelens does not read the arrays or the names of files.
"""

from __future__ import annotations

from types import MappingProxyType

from ..instrumentor import CallsInstrumentor


class NumpyInstrumentor(CallsInstrumentor):
    """Instrumentor of the functions of NumPy that read and write files."""

    library = "numpy"
    title = "NumPy"
    stages = MappingProxyType(
        {"serialize": "`load`, `save`, `savez`, `savez_compressed`, `loadtxt`, `savetxt` and `genfromtxt`"}
    )
    not_timed = (
        "the arrays of an `.npz` file: they are read when they are used, after `load`",
        "the methods of arrays, such as `tobytes` and `tolist`: they are part of the interpreter's C types",
    )
    tested = MappingProxyType({"numpy": "2.4.6"})
    calls = MappingProxyType(
        {
            "numpy": {
                "serialize": ("load", "save", "savez", "savez_compressed", "loadtxt", "savetxt", "genfromtxt"),
            }
        }
    )
