"""Chart of an incident as PNG with trend, onset and alert threshold, and the signed URL of the chart.

Pillow draws the chart, see `drawing`, so the server needs no browser and no fonts. Equal findings give equal images.

The URL ends with a signature of the incident's id under a key in the database. The sender creates the URL, and every dashboard
on the same database verifies it. The signature gives access to the current chart of that incident only.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import math
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import quote, urlsplit

from PIL import Image, ImageColor, ImageDraw
from PIL.Image import Resampling
from sqlalchemy import Connection, insert, select

from .. import formatting
from ..formatting import line
from ..schema import keys
from .drawing import GRID, INK, MUTED, SHARP, SURFACE, draw_text, encode_png, text_width
from .message import Finding, Message, Trend
from .message_text import format_seconds, regression_subject

CHART_PATH = "/charts"
_KEY_NAME = "charts"
_MINUTE, _DAY = 60, 86_400
# Maximum number of labels. [count]
_MOST_LEVELS, _MOST_MOMENTS = 4, 7
# Steps of the time axis below a day; longer steps are whole days. [minutes]
_CLOCK_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720)
log = logging.getLogger(__name__)
# Size as displayed. Lines are drawn at a higher resolution and scaled down, because Pillow does not antialias them.
WIDTH, HEIGHT = 600, 212
_FINE = 4
_BOX = (66.0, 66.0, 496.0, 178.0)
_MARGIN, _ROW = 14.0, 18.0
_CALM = "#8b919d"
# Font sizes: Slack and phones show the chart at about half its width. [units]
_LARGE, _USUAL = 19, 15
_SMALL = (_USUAL, MUTED)
_TROUBLE = {"page": "#c9252d", "ticket": "#a85b00"}
_MAX_VERSION_CHARS = 24


def chart_url(connection: Connection, message: Message) -> str:
    """Return the URL of the chart of *message*; "" if the dashboard does not use https."""
    host = _https_host(message.finding.link)
    if not host:
        return ""
    key = _signing_key(connection)
    if key is None:
        key = secrets.token_hex(32)
        connection.execute(insert(keys).values(name=_KEY_NAME, value=key))
    name = message.incident
    return f"https://{host}{CHART_PATH}/{quote(name, safe='')}/{_signature(key, name)}.png"


def is_chart_signature(connection: Connection, incident: str, signature: str) -> bool:
    key = _signing_key(connection)
    return key is not None and hmac.compare_digest(signature.encode(), _signature(key, incident).encode())


def _https_host(link: str) -> str:
    try:
        split = urlsplit(link)
    except ValueError:
        return ""
    return split.netloc if split.scheme == "https" else ""


def _signing_key(connection: Connection) -> str | None:
    return connection.execute(select(keys.c.value).where(keys.c.name == _KEY_NAME)).scalar()


def _signature(key: str, incident: str) -> str:
    return hmac.new(bytes.fromhex(key), incident.encode(), hashlib.sha256).hexdigest()


@dataclass(frozen=True, slots=True)
class ChartScale:
    """Axes of a chart: map times and values, which start at zero, to positions in a box."""

    start: float
    end: float
    highest: float
    box: tuple[float, float, float, float]

    def x(self, at: float) -> float:
        """Return the x position of *at* (Unix seconds), clamped to the box."""
        left, _, right, _ = self.box
        return left + (right - left) * min(1.0, max(0.0, (at - self.start) / (self.end - self.start)))

    def y(self, value: float) -> float:
        _, top, _, bottom = self.box
        return bottom - (bottom - top) * value / (self.levels()[-1])

    def levels(self) -> list[float]:
        step = _round_up(self.highest / _MOST_LEVELS)
        return [step * number for number in range(math.ceil(self.highest / step - 1e-9) + 1)]

    def moments(self) -> Iterator[tuple[float, str]]:
        """Yield the times with labels in Unix seconds, each with its label: a time in UTC, or a day."""
        step = _time_step(self.end - self.start)
        number = math.ceil(self.start / step)
        while number * step <= self.end:
            at = datetime.fromtimestamp(number * step, UTC)
            is_midnight = number * step % _DAY == 0
            yield number * step, f"{at.day} {at:%b}" if is_midnight else f"{at:%H:%M}"
            number += 1


def _round_up(size: float) -> float:
    """Return *size* rounded up to 1, 2 or 5 times a power of ten.

    >>> _round_up(7.2), _round_up(0.031), _round_up(20)
    (10.0, 0.05, 20.0)
    """
    unit = 10.0 ** math.floor(math.log10(size))
    return next(unit * lead for lead in (1, 2, 5, 10) if unit * lead >= size * (1 - 1e-9))


def _time_step(length: float) -> int:
    """Return the distance between the labels of a time axis of *length*, both in seconds.

    >>> _time_step(30 * 60), _time_step(86_400), _time_step(20 * 86_400)
    (300, 21600, 259200)
    """
    for minutes in _CLOCK_STEPS:
        if length <= _MOST_MOMENTS * minutes * _MINUTE:
            return minutes * _MINUTE
    return _DAY * math.ceil(length / _DAY / _MOST_MOMENTS)


_Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class _ReferenceLine:
    value: float
    name: tuple[str, str]


def message_chart(message: Message) -> bytes | None:
    """Return the chart of *message* as PNG; None without a trend, or if the incident is resolved."""
    return None if message.resolved else draw_chart(message.finding)


def draw_chart(finding: Finding) -> bytes | None:
    trend = finding.course
    if trend is None or trend.highest is None:
        return None
    try:
        return encode_png(_draw_image(finding, trend, trend.highest))
    except Exception:  # the page is sent without a chart
        log.exception("alerts: %s: the chart cannot be drawn; messages are sent without it", finding.name)
        return None


def _draw_image(finding: Finding, trend: Trend, highest: float) -> Image.Image:
    limit, colour = _reference_line(finding), _TROUBLE[finding.severity]
    scale = ChartScale(trend.start, trend.end, max(highest, limit.value) or 1.0, _BOX)
    shapes = _draw_shapes(trend, scale, limit, _CALM)
    edge = round(scale.x(finding.since) * _FINE)
    shapes.paste(_draw_shapes(trend, scale, limit, colour).crop((edge, 0, *shapes.size)), (edge, 0))
    last_at, last = [point for run in _runs(trend) for point in run][-1]
    _draw_onset(
        ImageDraw.Draw(shapes), scale, finding.since, (last_at, last), colour if last_at >= finding.since else _CALM
    )
    image = shapes.resize((WIDTH * SHARP, HEIGHT * SHARP), Resampling.BOX)
    _write_axes(ImageDraw.Draw(image), scale, finding)
    _write_limit_and_last(ImageDraw.Draw(image), scale, finding, limit, (last_at, last))
    return image


def _reference_line(finding: Finding) -> _ReferenceLine:
    if finding.burn is not None:
        return _ReferenceLine(finding.burn.threshold, ("alerts from", formatting.times(finding.burn.threshold)))
    usual = finding.shift.before_seconds if finding.shift is not None else 0.0
    return _ReferenceLine(usual, ("usual", formatting.latency(usual)))


def _draw_shapes(trend: Trend, scale: ChartScale, limit: _ReferenceLine, colour: str) -> Image.Image:
    image = Image.new("RGB", (WIDTH * _FINE, HEIGHT * _FINE), SURFACE)
    pen = ImageDraw.Draw(image)
    left, _, right, bottom = _BOX
    runs = [[(scale.x(at), scale.y(value)) for at, value in run] for run in _runs(trend)]
    for run in runs:
        pen.polygon(_to_fine([(run[0][0], bottom), *run, (run[-1][0], bottom)]), fill=_tint(colour))
    for level in scale.levels():
        y = scale.y(level)
        pen.line(_to_fine([(left, y), (right, y)]), fill=GRID if level else _CALM, width=_FINE)
    y = scale.y(limit.value)
    for dash in range(int(left), int(right), 8):
        pen.line(_to_fine([(dash, y), (min(dash + 5.0, right), y)]), fill=MUTED, width=_FINE)
    for run in runs:
        pen.line(_to_fine(run), fill=colour, width=5 * _FINE // 2, joint="curve")
        for end in (run[0], run[-1]):
            _draw_dot(pen, end, 1.25 if len(run) > 1 else 2.5, colour)
    return image


def _draw_onset(pen: ImageDraw.ImageDraw, scale: ChartScale, since: float, last: _Point, colour: str) -> None:
    if scale.start <= since:
        x = scale.x(since)
        pen.line(_to_fine([(x, _BOX[1] - 8), (x, _BOX[3])]), fill=INK, width=_FINE)
    end = (scale.x(last[0]), scale.y(last[1]))
    _draw_dot(pen, end, 6.0, SURFACE)
    _draw_dot(pen, end, 4.5, colour)


def _write_axes(pen: ImageDraw.ImageDraw, scale: ChartScale, finding: Finding) -> None:
    left, top, right, bottom = _BOX
    name, unit = _chart_title(finding)
    draw_text(pen, (_MARGIN, 23), name, (_LARGE, INK), "lm")
    draw_text(pen, (_MARGIN + text_width(name, _LARGE) + 10, 24), unit, _SMALL, "lm")
    for level in scale.levels():
        draw_text(pen, (left - 8, scale.y(level)), _level_label(level, scale, finding), _SMALL, "rm")
    for at, label in scale.moments():
        draw_text(pen, (scale.x(at), bottom + _ROW), label, _SMALL, "mm")
    draw_text(pen, (WIDTH - _MARGIN, bottom + _ROW), "UTC", _SMALL, "rm")
    if scale.start <= finding.since:
        label = _onset_label(finding, scale)
        half = text_width(label, _USUAL) / 2
        x = min(max(scale.x(finding.since), left + half), right - half)
        draw_text(pen, (x, top - _ROW), label, (_USUAL, INK), "mm")


def _write_limit_and_last(
    pen: ImageDraw.ImageDraw, scale: ChartScale, finding: Finding, limit: _ReferenceLine, last: _Point
) -> None:
    x, bottom = _BOX[2] + 10, _BOX[3]
    is_over = last[1] >= limit.value
    first = min(scale.y(limit.value), bottom - _ROW) if is_over else scale.y(limit.value) - _ROW
    for number, text in enumerate(limit.name):
        draw_text(pen, (x, first + _ROW * number), text, _SMALL, "lm")
    y = min(scale.y(last[1]), first - _ROW - 2) if is_over else max(scale.y(last[1]), first + 2 * _ROW + 2)
    colour = _TROUBLE[finding.severity] if last[0] >= finding.since else MUTED
    draw_text(
        pen, (x, y), formatting.times(last[1]) if finding.burn else formatting.latency(last[1]), (_LARGE, colour), "lm"
    )


def _chart_title(finding: Finding) -> tuple[str, str]:
    if finding.shift is None:
        step = format_seconds(finding.course.step_seconds) if finding.course else ""
        return "Burn rate", f"in {step}, times as fast as the error budget allows"
    name = regression_subject(finding.shift)
    return name if finding.shift.at == "mean" else f"{name} latency", ""


def _level_label(level: float, scale: ChartScale, finding: Finding) -> str:
    if not level or finding.shift is None:
        return f"{level:g}x" if level else "0"
    top = scale.levels()[-1]
    size, unit = (1.0, "s") if top >= 1 else (1e3, "ms") if top >= 1e-3 else (1e6, "us")  # noqa: PLR2004 - SI steps
    return f"{level * size:g} {unit}"


def _onset_label(finding: Finding, scale: ChartScale) -> str:
    at, end = (datetime.fromtimestamp(moment, UTC) for moment in (finding.since, scale.end))
    day = "" if at.date() == end.date() else f"{at.day} {at:%b} "
    version = line(finding.version, _MAX_VERSION_CHARS).replace("…", "...")
    release = f", with version {version}" if version.isascii() and version else ""
    return f"began {day}{at:%H:%M}{release}"


def _runs(trend: Trend) -> list[list[_Point]]:
    runs: list[list[_Point]] = [[]]
    for number, value in enumerate(trend.values):
        if value is None:
            runs.append([])
        else:
            runs[-1].append((trend.start + (number + 0.5) * trend.step_seconds, value))
    return [run for run in runs if run]


def _draw_dot(pen: ImageDraw.ImageDraw, at: _Point, radius: float, colour: str) -> None:
    (x, y), size = _to_fine([at])[0], radius * _FINE
    pen.ellipse((x - size, y - size, x + size, y + size), fill=colour)


def _to_fine(points: list[_Point]) -> list[_Point]:
    return [(x * _FINE, y * _FINE) for x, y in points]


def _tint(colour: str) -> tuple[int, ...]:
    return tuple(round(255 - 0.12 * (255 - part)) for part in ImageColor.getrgb(colour)[:3])
