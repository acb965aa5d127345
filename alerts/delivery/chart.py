"""How an incident goes as a small picture, for channels that take one: the course, when it began, and from where it alerts.

Drawn by Pillow with the one font it brings along, so that a server needs neither a browser nor fonts; that font has little
beyond ASCII. The same finding is the same picture.
"""

from __future__ import annotations

import io
import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache

from PIL import Image, ImageColor, ImageDraw, ImageFont
from PIL.Image import Dither, Quantize, Resampling

from .. import formatting
from . import shift_words
from .chart_scale import Scale
from .finding_parts import Course
from .message import Finding, Message
from .truncation import line

log = logging.getLogger(__name__)

# As it is shown; it has twice as many pixels each way, as today's screens do, and lines are drawn finer still and made
# smaller, because Pillow draws them with steps.
WIDTH, HEIGHT = 600, 212
_SHARP, _FINE = 2, 4
_BOX = (66.0, 66.0, 496.0, 178.0)
_MARGIN, _ROW = 14.0, 18.0
# As many as a PNG of one byte a pixel has: a third of the size. [count]
_COLOURS = 256
# Those of the dashboard by day (assets/tokens.css): a picture cannot know whether its reader's screen is dark.
_SURFACE, _GRID, _INK, _MUTED, _CALM = "#ffffff", "#ecedf0", "#16181d", "#59606c", "#8b919d"
# Large letters: Slack and phones show it at little more than half its width. [units]
_LARGE, _USUAL = 19, 15
_SMALL = (_USUAL, _MUTED)
_TROUBLE = {"page": "#c9252d", "ticket": "#a85b00"}
_MAX_VERSION_CHARS = 24

_Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class _Limit:
    """The value that the course is held against, and its name: two short lines."""

    value: float
    name: tuple[str, str]


def of(message: Message) -> bytes | None:
    """Return the picture of what *message* tells, as PNG; None where there is none, or it is over."""
    return None if message.resolved else draw(message.finding)


def draw(finding: Finding) -> bytes | None:
    """Return the picture of *finding* as PNG; None where it has no course."""
    course = finding.course
    if course is None or course.highest is None:
        return None
    try:
        return _png(_drawn(finding, course, course.highest))
    except Exception:  # whatever is odd about the numbers: a page without its picture is a page, none is not
        log.exception("alerts: the chart of %s cannot be drawn", finding.name)
        return None


def _drawn(finding: Finding, course: Course, highest: float) -> Image.Image:
    limit, colour = _limit(finding), _TROUBLE[finding.severity]
    scale = Scale(course.start, course.end, max(highest, limit.value) or 1.0, _BOX)
    shapes = _shapes(course, scale, limit, _CALM)
    edge = round(scale.x(finding.since) * _FINE)
    shapes.paste(_shapes(course, scale, limit, colour).crop((edge, 0, *shapes.size)), (edge, 0))
    last_at, last = [point for run in _runs(course) for point in run][-1]
    _mark(ImageDraw.Draw(shapes), scale, finding.since, (last_at, last), colour if last_at >= finding.since else _CALM)
    image = shapes.resize((WIDTH * _SHARP, HEIGHT * _SHARP), Resampling.BOX)
    _write_axes(ImageDraw.Draw(image), scale, finding)
    _write_limit_and_last(ImageDraw.Draw(image), scale, finding, limit, (last_at, last))
    return image


def _limit(finding: Finding) -> _Limit:
    if finding.burn is not None:
        return _Limit(finding.burn.threshold, ("alerts from", formatting.times(finding.burn.threshold)))
    usual = finding.shift.before_seconds if finding.shift is not None else 0.0
    return _Limit(usual, ("usual", formatting.latency(usual)))


def _shapes(course: Course, scale: Scale, limit: _Limit, colour: str) -> Image.Image:
    """Draw what has no letters, all of it in *colour*."""
    image = Image.new("RGB", (WIDTH * _FINE, HEIGHT * _FINE), _SURFACE)
    pen = ImageDraw.Draw(image)
    left, _, right, bottom = _BOX
    runs = [[(scale.x(at), scale.y(value)) for at, value in run] for run in _runs(course)]
    for run in runs:
        pen.polygon(_fine([(run[0][0], bottom), *run, (run[-1][0], bottom)]), fill=_tint(colour))
    for level in scale.levels():
        y = scale.y(level)
        pen.line(_fine([(left, y), (right, y)]), fill=_GRID if level else _CALM, width=_FINE)
    y = scale.y(limit.value)
    for dash in range(int(left), int(right), 8):
        pen.line(_fine([(dash, y), (min(dash + 5.0, right), y)]), fill=_MUTED, width=_FINE)
    for run in runs:
        pen.line(_fine(run), fill=colour, width=5 * _FINE // 2, joint="curve")
        for end in (run[0], run[-1]):
            _dot(pen, end, 1.25 if len(run) > 1 else 2.5, colour)
    return image


def _mark(pen: ImageDraw.ImageDraw, scale: Scale, since: float, last: _Point, colour: str) -> None:
    """Draw when it began, and how it stands."""
    if scale.start <= since:
        x = scale.x(since)
        pen.line(_fine([(x, _BOX[1] - 8), (x, _BOX[3])]), fill=_INK, width=_FINE)
    end = (scale.x(last[0]), scale.y(last[1]))
    _dot(pen, end, 6.0, _SURFACE)
    _dot(pen, end, 4.5, colour)


def _write_axes(pen: ImageDraw.ImageDraw, scale: Scale, finding: Finding) -> None:
    left, top, right, bottom = _BOX
    name, unit = _title(finding)
    _text(pen, (_MARGIN, 23), name, (_LARGE, _INK))
    _text(pen, (_MARGIN + _font(_LARGE).getlength(name) / _SHARP + 10, 24), unit, _SMALL)
    for level in scale.levels():
        _text(pen, (left - 8, scale.y(level)), _level(level, scale, finding), _SMALL, "rm")
    for at, said in scale.moments():
        _text(pen, (scale.x(at), bottom + _ROW), said, _SMALL, "mm")
    _text(pen, (WIDTH - _MARGIN, bottom + _ROW), "UTC", _SMALL, "rm")
    if scale.start <= finding.since:
        said = _began(finding, scale)
        half = _font(_USUAL).getlength(said) / _SHARP / 2
        x = min(max(scale.x(finding.since), left + half), right - half)
        _text(pen, (x, top - _ROW), said, (_USUAL, _INK), "mm")


def _write_limit_and_last(
    pen: ImageDraw.ImageDraw, scale: Scale, finding: Finding, limit: _Limit, last: _Point
) -> None:
    """Write both at the right, one of them out of the way of the other."""
    x, bottom = _BOX[2] + 10, _BOX[3]
    is_over = last[1] >= limit.value
    first = min(scale.y(limit.value), bottom - _ROW) if is_over else scale.y(limit.value) - _ROW
    for number, said in enumerate(limit.name):
        _text(pen, (x, first + _ROW * number), said, _SMALL)
    y = min(scale.y(last[1]), first - _ROW - 2) if is_over else max(scale.y(last[1]), first + 2 * _ROW + 2)
    colour = _TROUBLE[finding.severity] if last[0] >= finding.since else _MUTED
    _text(pen, (x, y), formatting.times(last[1]) if finding.burn else formatting.latency(last[1]), (_LARGE, colour))


def _title(finding: Finding) -> tuple[str, str]:
    """Return what is drawn, and its unit where it needs to be told."""
    if finding.shift is None:
        return "Burn rate", "times as fast as the error budget allows"
    name = shift_words.subject(finding.shift)
    return name if finding.shift.at == "mean" else f"{name} latency", ""


def _level(level: float, scale: Scale, finding: Finding) -> str:
    if not level or finding.shift is None:
        return f"{level:g}x" if level else "0"
    top = scale.levels()[-1]
    size, unit = (1.0, "s") if top >= 1 else (1e3, "ms") if top >= 1e-3 else (1e6, "us")  # noqa: PLR2004 - SI steps
    return f"{level * size:g} {unit}"


def _began(finding: Finding, scale: Scale) -> str:
    """Say when it began, and with which release; with the day, where the picture shows several."""
    at, end = (datetime.fromtimestamp(each, UTC) for each in (finding.since, scale.end))
    day = "" if at.date() == end.date() else f"{at.day} {at:%b} "
    version = line(finding.version, _MAX_VERSION_CHARS).replace("…", "...")
    release = f", with version {version}" if version.isascii() and version else ""
    return f"began {day}{at:%H:%M}{release}"


def _runs(course: Course) -> list[list[_Point]]:
    """Return the stretches that have values, each as moments (the middle of a step) and values."""
    runs: list[list[_Point]] = [[]]
    for number, value in enumerate(course.values):
        if value is None:
            runs.append([])
        else:
            runs[-1].append((course.start + (number + 0.5) * course.step_seconds, value))
    return [run for run in runs if run]


def _dot(pen: ImageDraw.ImageDraw, at: _Point, radius: float, colour: str) -> None:
    (x, y), size = _fine([at])[0], radius * _FINE
    pen.ellipse((x - size, y - size, x + size, y + size), fill=colour)


def _text(pen: ImageDraw.ImageDraw, at: _Point, said: str, look: tuple[int, str], anchor: str = "lm") -> None:
    """Write *said*, in a size and a colour, with the end of it at *at* that *anchor* names, as Pillow calls it."""
    plain = said.translate({ord(formatting.TIMES): "x", ord("µ"): "u"})
    size, colour = look
    pen.text((at[0] * _SHARP, at[1] * _SHARP), plain, fill=colour, font=_font(size), anchor=anchor)


@cache
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size * _SHARP)


def _fine(points: list[_Point]) -> list[_Point]:
    return [(x * _FINE, y * _FINE) for x, y in points]


def _tint(colour: str) -> tuple[int, ...]:
    return tuple(round(255 - 0.12 * (255 - part)) for part in ImageColor.getrgb(colour)[:3])


def _png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.quantize(_COLOURS, Quantize.MEDIANCUT, dither=Dither.NONE).save(file, "PNG", optimize=True)
    return file.getvalue()
