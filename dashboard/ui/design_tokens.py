"""Colours by token name; the values are in `assets/tokens.css`.

A figure contains tokens instead of colours, and the browser resolves them for the active theme. Switching the theme therefore
needs no request:

    "$ink"            the colour itself
    "$ink@.3"         at 30 % opacity
    "$st.queue@~.92"  mixed with 8 % of the surface, opaque
    "{$st.queue}"     inside a text, such as the style of a label's swatch
"""

from __future__ import annotations

import re
import zlib

from ...core.stages import BY_KEY, MAX_CUSTOM_STAGES, OTHER

# Stages with a pattern for readers who cannot distinguish the hues: copies, and CPU work on data. Waiting has its own pattern.
_FAMILIES = {
    **dict.fromkeys(("h2d", "d2h"), "copy"),
    **dict.fromkeys(("preprocess", "tokenize", "postprocess", "serialize"), "cpu"),
}

TOKEN = re.compile(r"\$(?:st\.\w+|\w+)(?:@~?[\d.]+)?")


def hue(stage: str) -> str:
    """Return the colour name of *stage*: its key, or one of three greys for custom stages.

    >>> hue("queue"), hue("__other__")
    ('queue', 'other')
    """
    if stage in BY_KEY:
        return stage
    if stage == OTHER:
        return "other"
    # By name, not by position: a stage has the same grey on every page.
    return f"own{zlib.crc32(stage.encode()) % MAX_CUSTOM_STAGES + 1}"


def family(stage: str) -> str:
    """Return the kind of time of *stage*, which the browser may show as a pattern: `wait`, `cpu`, `copy`, `own` or "".

    >>> family("queue"), family("h2d"), family("my_rerank"), family("forward")
    ('wait', 'copy', 'own', '')
    """
    stage_of_key = BY_KEY.get(stage)
    if stage_of_key is None:
        return "own"
    return "wait" if stage_of_key.waiting else _FAMILIES.get(stage, "")


def stage_colour(stage: str, *, solid: float = 1.0) -> str:
    """Return the colour token of *stage*, mixed with the surface when *solid* is below 1.

    Args:
        solid: Share of the stage's own colour. [ratio, 0 < x <= 1]

    >>> stage_colour("queue"), stage_colour("queue", solid=0.92)
    ('$st.queue', '$st.queue@~0.92')
    """
    return f"$st.{hue(stage)}" + ("" if solid == 1 else f"@~{solid:g}")
