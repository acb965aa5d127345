"""soundfile: times decoding and encoding of audio.

- A call below 20 µs is not recorded.
- Stagelens does not read samples or names of files.
"""

from __future__ import annotations

from types import MappingProxyType

from ..instrumentor import CallsInstrumentor


class SoundFileInstrumentor(CallsInstrumentor):
    """Instrumentor of the functions of `soundfile`."""

    library = "soundfile"
    title = "soundfile"
    stages = MappingProxyType({"preprocess": "`read`, `write`, `info`, and `read` and `write` of `SoundFile`"})
    not_timed = ("`blocks`: your code runs between the blocks",)
    tested = MappingProxyType({"soundfile": "0.14.0"})
    calls = MappingProxyType(
        {"soundfile": {"preprocess": ("read", "write", "info", "SoundFile.read", "SoundFile.write")}}
    )
