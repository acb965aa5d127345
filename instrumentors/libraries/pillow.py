"""Pillow: times decoding, conversion, resizing and encoding of images.

- `Image.open` reads only the header. The first use of the pixels decodes them, and that call counts.
- A call below 20 µs is not recorded.
- Stagelens does not read pixels or names of files.
"""

from __future__ import annotations

from types import MappingProxyType

from ..instrumentor import CallsInstrumentor

_METHODS = (
    "load convert resize thumbnail reduce crop rotate transpose transform filter paste save tobytes quantize draft"
)


class PillowInstrumentor(CallsInstrumentor):
    """Instrumentor of `Image` and `ImageFile`."""

    library = "PIL"
    title = "Pillow"
    stages = MappingProxyType(
        {
            "preprocess": "`open`, `load`, `convert`, `resize`, `thumbnail`, `crop`, `rotate`, `transpose`, `transform`, `filter`, `save` and similar methods of `Image`, and `ImageOps`"
        }
    )
    not_timed = ("conversion to an array by `numpy.asarray`, except decoding and `tobytes` in it", "`ImageDraw`")
    tested = MappingProxyType({"pillow": "13.0.0"})
    calls = MappingProxyType(
        {
            "PIL.Image": {
                "preprocess": ("open", "fromarray", "frombytes", *(f"Image.{name}" for name in _METHODS.split()))
            },
            "PIL.ImageFile": {"preprocess": ("ImageFile.load",)},
            "PIL.ImageOps": {
                "preprocess": ("autocontrast", "contain", "cover", "equalize", "exif_transpose", "fit", "pad", "scale")
            },
        }
    )
