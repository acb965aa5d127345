"""Text, colours and PNG encoding of the images that Pillow draws without a browser.

Pillow's built-in font needs no font files; it covers little beyond ASCII, so other characters are spelled or become `?`.
Positions and font sizes are in displayed pixels. An image has `SHARP` times as many pixels, for high-density screens.
"""

from __future__ import annotations

import io
import unicodedata
from functools import cache

from PIL import Image, ImageDraw, ImageFont
from PIL.Image import Dither, Quantize

SHARP = 2
# Colours of the dashboard's light theme (assets/tokens.css).
SURFACE, GRID, INK, MUTED = "#ffffff", "#ecedf0", "#16181d", "#59606c"
# Number of colours of an 8-bit PNG, which has a third of the size of a true-colour one. [count]
_COLOURS = 256
_SPELLED = str.maketrans({"×": "x", "µ": "u", "→": "->", "–": "-", "—": "-", "−": "-"})  # noqa: RUF001 - of texts to draw
# Characters beyond ASCII that the font has.
_COVERED = "©«°±·»"


def draw_text(
    pen: ImageDraw.ImageDraw, at: tuple[float, float], text: str, style: tuple[int, str], anchor: str
) -> None:
    """Write *text* with font size and colour *style* at *at*, aligned by Pillow's *anchor*."""
    size, colour = style
    pen.text((at[0] * SHARP, at[1] * SHARP), drawable(text), fill=colour, font=_font(size), anchor=anchor)


def text_width(text: str, size: int) -> float:
    return _font(size).getlength(drawable(text)) / SHARP


def drawable(text: str) -> str:
    """Return *text* in the characters of the font; letters lose their accents.

    >>> drawable("p50 → Größe 模型")
    'p50 -> Grosse ??'
    """
    spelled = unicodedata.normalize("NFKD", text.translate(_SPELLED).replace("ß", "ss"))
    return "".join(
        character if (character.isascii() and character.isprintable()) or character in _COVERED else "?"
        for character in spelled
        if not unicodedata.combining(character)
    )


def encode_png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.quantize(_COLOURS, Quantize.MEDIANCUT, dither=Dither.NONE).save(file, "PNG", optimize=True)
    return file.getvalue()


@cache
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size * SHARP)
