"""torchvision: times transforms, and decoding and encoding of images.

- Transforms are modules, except some of version 1. The [PyTorch](torch.md) module times them.
- A call below 20 µs is not recorded. `torch.compile` and `torch.jit.script` work unchanged.
- Stagelens does not read pixels or names of files.
"""

from __future__ import annotations

from types import MappingProxyType

from .torch.models import OutsideInstrumentor

_CLASSES = ("Compose", "ToTensor", "PILToTensor", "ToPILImage", "RandomChoice", "RandomOrder")
_FUNCTIONS = (
    "read_file read_image decode_image decode_jpeg decode_png decode_gif decode_webp decode_avif decode_heic "
    "write_file encode_jpeg encode_png write_jpeg write_png"
)


class TorchvisionInstrumentor(OutsideInstrumentor):
    """Instrumentor of `torchvision.io` and of the transforms that are no modules."""

    library = "torchvision"
    title = "torchvision"
    stages = MappingProxyType(
        {
            "preprocess": "transforms of versions 1 and 2, `Compose`, and the functions of `torchvision.io` that read, decode, encode or write an image"
        }
    )
    not_timed = ("`torchvision.transforms.functional` outside of a transform, and videos",)
    tested = MappingProxyType({"torchvision": "0.28.0"})
    calls = MappingProxyType(
        {
            "torchvision.transforms.transforms": {"preprocess": tuple(f"{name}.__call__" for name in _CLASSES)},
            "torchvision.io.image": {"preprocess": _FUNCTIONS.split()},
        }
    )
