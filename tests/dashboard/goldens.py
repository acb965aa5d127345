"""Golden pictures of the pages: comparison of a page with its accepted picture.

They are kept a quarter as wide as the screen and in few colours: small files, and what differs between two versions of a browser
or of its fonts is lost in them. A block that moved, a colour or a chart that is gone is not. `STAGELENS_GOLDENS=accept` takes
the pictures of this run for the new ones: look at them before they are committed.
"""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
from PIL import Image
from PIL.Image import Quantize, Resampling

GOLDENS = Path(__file__).parent / "goldens"
ARTIFACTS = Path(__file__).parents[2] / "artifacts" / "dashboard"
_SMALLER = 4
_COLOURS = 48
# A pixel differs when a channel is further off than few colours and another rasteriser explain. [of 255]
_FAR = 48
# So much of a picture may: a tick or a number that moved by a pixel.
_MOST_DIFFERENT = 0.012


def complaint(screenshot: bytes, name: str) -> str:
    """Return how *screenshot* differs from the golden *name*, "" where it does not; the difference is left among the artifacts."""
    golden = GOLDENS / f"{name}.png"
    shown = _small(screenshot)
    if os.environ.get("STAGELENS_GOLDENS") == "accept":
        GOLDENS.mkdir(exist_ok=True)
        # No colour far from its own: by others a picture of many tints differs from itself in more pixels than one may.
        shown.quantize(_COLOURS, method=Quantize.MAXCOVERAGE).save(golden, optimize=True)
        return ""
    if not golden.exists():
        return f"there is no golden {name}: make one with STAGELENS_GOLDENS=accept, and look at it"
    wanted = Image.open(golden).convert("RGB")
    if wanted.size != shown.size:
        _leave(shown, wanted, name)
        return f"{name} is {shown.size} and was {wanted.size} (a quarter of the page)"
    apart = np.abs(np.asarray(shown, dtype=np.int16) - np.asarray(wanted, dtype=np.int16)).max(axis=2) > _FAR
    if apart.mean() <= _MOST_DIFFERENT:
        return ""
    _leave(shown, wanted, name)
    return f"{apart.mean():.1%} of {name} looks different: see artifacts/dashboard/{name}-difference.png"


def _small(screenshot: bytes) -> Image.Image:
    whole = Image.open(io.BytesIO(screenshot)).convert("RGB")
    return whole.resize((whole.width // _SMALLER, whole.height // _SMALLER), Resampling.BOX)


def _leave(shown: Image.Image, wanted: Image.Image, name: str) -> None:
    """Put both beside each other."""
    beside = Image.new("RGB", (shown.width + wanted.width, max(shown.height, wanted.height)))
    beside.paste(wanted, (0, 0))
    beside.paste(shown, (wanted.width, 0))
    beside.save(ARTIFACTS / f"{name}-difference.png")
