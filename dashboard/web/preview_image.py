"""Preview of a view: its main numbers as a sentence and as a PNG image of 1200 x 630 pixels, drawn by Pillow without a browser.

A service has its p50 and p99 with their stages as bars; an incident has its chart; other pages have their main numbers.
"""

from __future__ import annotations

import io
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache

from PIL import Image, ImageDraw

from ...alerts.delivery.chart import HEIGHT as CHART_HEIGHT
from ...alerts.delivery.drawing import GRID, INK, MUTED, SHARP, SURFACE, draw_text, encode_png, fit_text, text_width
from ...alerts.evaluation.slo_status import SloStatus
from ...core.stages import label, ordered
from ..figures.budget import budget_left_words
from ..pages.comparison import asked_pair, compared
from ..pages.comparison_text import short_name, verdict_sentence
from ..pages.measures import measure, measures_in_window
from ..pages.page import Context
from ..pages.service_status import COLOURS, state_counts
from ..pages.slo import slo_sentence
from ..ui.components import WORDS
from ..ui.design_tokens import hue
from ..ui.format import attained, count, day, duration, percent, several, target, time_range, times
from ..view import View
from . import assets
from .routing import OF_ADMINS, page_status

# The size that Facebook, Slack and X display in full; see https://ogp.me for the tags.
WIDTH, HEIGHT = 1200, 630
_OK = 200
# Positions and font sizes in displayed pixels, of which the image has `SHARP` times as many.
_LEFT, _RIGHT = 24.0, WIDTH / SHARP - 24.0
_TITLE, _LARGE, _USUAL = 30, 22, 15
_BARS_TOP, _BARS_BOTTOM, _LEGEND_TOP, _LEGEND_ROW = 138.0, 226.0, 247.0, 22.0
_TALLEST_BAR, _NAME_SHARE = 30.0, 0.3
_MOST_BARS, _MOST_FACTS, _MOST_STAGES, _LEGEND_COLUMNS = 5, 4, 6, 2
# Stages of both bars are named with their times up to this number of bars.
_COMPARED_BARS = 2
_TITLES = {"slo": "SLO {}", "incidents": "Incident {}", "traces": "Trace {:.8}"}
_TITLES_OF_LISTS = {"": "Fleet overview", "slo": "SLOs"}
_COLOUR = re.compile(r"--([\w-]+): light-dark\((#\w{6})")


@dataclass(frozen=True, slots=True)
class Bar:
    name: str
    seconds: float
    stages: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ViewPreview:
    """Main content of a view."""

    title: str
    window: str
    headline: str = ""
    state: tuple[str, str] = ("", "muted")
    facts: tuple[tuple[str, str], ...] = ()
    bars: tuple[Bar, ...] = ()
    chart: bytes | None = None


def view_title(view: View) -> str:
    """Return the title of *view*, from its address alone."""
    page, name, tab = (*view.parts, "", "", "")[:3]
    if name:
        title = _TITLES.get(page, "{}").format(name)
        return f"{title}: {tab}" if tab else title
    service = view.text("svc")
    title = _TITLES_OF_LISTS.get(page, page.capitalize())
    return f"{title}: {service}" if service else title


def view_window(view: View) -> str:
    """Return the window of *view* in UTC, and its filters."""
    chosen = [view.text("env") or "", *(f"{key}={value}" for key, value in view.scope.items())]
    return " · ".join([f"{time_range(view.start, view.end, UTC)} UTC", *filter(None, chosen)])


def preview_of(context: Context) -> ViewPreview | None:
    """Return the preview of *context*; None for an address without a page, and for pages of admins."""
    view = context.view
    if page_status(context) != _OK or "".join(view.parts[:1]) in OF_ADMINS:
        return None
    page, name = (*view.parts, "", "")[:2]
    build = _BUILDERS.get((page, bool(name)), _service if context.service else _plain)
    return build(context)


def _plain(context: Context) -> ViewPreview:
    return ViewPreview(view_title(context.view), view_window(context.view))


def _service(context: Context) -> ViewPreview:
    now, slo = measure(context.source, context.selection), context.slo
    state = _state(slo) if slo is not None else ("", "muted")
    if not now.requests:
        return replace(_plain(context), state=state)
    facts = [("Requests", f"{count(now.requests / context.seconds)}/s"), ("Errors", percent(now.error_ratio, 2))]
    if slo is not None and slo.budget_left is not None:
        facts.append(("Error budget", " ".join(budget_left_words(slo.budget_left))))
    known = [("p50", now.p50, now.median_stages), ("p99", now.p99, now.tail_stages)]
    bars = tuple(Bar(name, seconds, stages) for name, seconds, stages in known if seconds is not None)
    latency = " → ".join(f"{bar.name} {duration(bar.seconds)}" for bar in bars) or "too few requests for percentiles"
    headline = f"{latency}{_largest_stage(bars)}, {several(now.requests, 'request')}"
    return replace(_plain(context), headline=headline, state=state, facts=tuple(facts), bars=bars)


def _largest_stage(bars: Sequence[Bar]) -> str:
    if not bars or not bars[-1].stages:
        return ""
    stage, seconds = max(bars[-1].stages.items(), key=lambda item: item[1])
    return f", most in {label(stage)} ({duration(seconds)})"


def _state(found: SloStatus) -> tuple[str, str]:
    colour = "good" if found.state == "healthy" else COLOURS.get(found.state, "muted")
    return f"SLO {WORDS[found.state].lower()}", colour


def _overview(context: Context) -> ViewPreview:
    found = sorted(measures_in_window(context).values(), key=lambda each: -(each.measures.p99 or 0))
    if not found:
        return _plain(context)
    total = sum(each.measures.requests for each in found)
    states = [each.state for each in context.slos]
    facts = [("Services", str(len(found))), ("Requests", f"{count(total / context.seconds)}/s")]
    facts += [("Objectives", f"{states.count('healthy')} of {len(states)} healthy")] if states else []
    slow = [each for each in found if each.measures.p99 is not None][:_MOST_BARS]
    bars = tuple(Bar(each.service, each.measures.p99 or 0.0, each.measures.tail_stages) for each in slow)
    slowest = f", highest p99 {duration(bars[0].seconds)} in {bars[0].name}" if bars else ""
    risks = "".join(f", {each}" for each in state_counts(states))
    headline = f"{several(len(found), 'service')}, {several(total, 'request')}{slowest}{risks}"
    plain = _plain(context)
    window = f"{plain.window} · p99 of each service" if bars else plain.window
    return replace(plain, window=window, headline=headline, facts=tuple(facts), bars=bars)


def _objectives(context: Context) -> ViewPreview:
    name = "".join(context.view.parts[1:2])
    found = [each for each in context.slos if name in ("", each.slo.name)]
    if not found:
        return _plain(context)
    first, plain = found[0], _plain(context)
    if not name:
        counts = state_counts([each.state for each in found])
        facts = (("Objectives", str(len(found))), ("States", ", ".join(counts) or WORDS["healthy"]))
        return replace(plain, headline=", ".join([several(len(found), "objective"), *counts]), facts=facts)
    facts = (
        ("Good requests", attained(first.attained, first.slo.objective)),
        ("Target", target(first.slo.objective)),
        ("Error budget", " ".join(budget_left_words(first.budget_left))),
        ("Burn rate, 1 h", times(first.burn_1h)),
    )
    return replace(plain, headline=slo_sentence(context.view, first), state=_state(first), facts=facts)


def _incident(context: Context) -> ViewPreview | None:
    name, actions = context.view.parts[1], context.source.incident_actions
    found = actions.incident(name)
    if found is None:
        return None
    is_open = found.state == "open"
    colour = ("bad" if found.severity == "page" else "warn") if is_open else "good"
    window = f"{time_range(found.since, found.resolved_at or context.source.now(), UTC)} UTC"
    title = f"{found.service}: {found.name}"
    return ViewPreview(title, window, found.headline, (found.state.capitalize(), colour), chart=actions.chart(name))


def _trace(context: Context) -> ViewPreview | None:
    found = context.source.cached(context.source.read.trace, context.view.parts[1])
    if found is None:
        return None
    stages = {stage: spent / 1e9 for stage, spent in found.stages_ns.items()}
    bars = (Bar("Latency", found.duration_ns / 1e9, stages),)
    started = f"{day(datetime.fromtimestamp(found.started_ns / 1e9, UTC))} UTC"
    window = " · ".join(filter(None, (started, found.series.service, found.series.route, found.series.environment)))
    headline = f"{duration(bars[0].seconds)}{_largest_stage(bars)}"
    facts = (("Latency", duration(bars[0].seconds)), ("Status", found.series.status))
    return replace(_plain(context), window=window, headline=headline, facts=facts, bars=bars)


def _comparison(context: Context) -> ViewPreview:
    pair = asked_pair(context) if context.service else None
    found = compared(context, pair) if pair is not None else None
    if pair is None or found is None or found.verdict.a_value is None or found.verdict.b_value is None:
        return _plain(context)
    values = (found.verdict.a_value, found.verdict.b_value)
    bars = tuple(
        Bar(f"{side} {short_name(name)}", value, dict(zip(found.stages["stage"], found.stages[column], strict=True)))
        for side, name, value, column in zip(
            "AB", (pair.a_name, pair.b_name), values, ("a_seconds", "b_seconds"), strict=True
        )
    )
    facts = (("Latency", f"p{found.quantile * 100:g}"), ("A", duration(values[0])), ("B", duration(values[1])))
    return replace(_plain(context), headline=verdict_sentence(found), facts=facts, bars=bars)


# By the first segment of the path, and whether it has a second one; other pages show the numbers of their service.
_BUILDERS: dict[tuple[str, bool], Callable[[Context], ViewPreview | None]] = {
    ("", False): _overview,
    ("slo", False): _objectives,
    ("slo", True): _objectives,
    ("incidents", True): _incident,
    ("traces", True): _trace,
    ("compare", False): _comparison,
}


def preview_png(preview: ViewPreview) -> bytes:
    image = Image.new("RGB", (WIDTH, HEIGHT), SURFACE)
    pen = ImageDraw.Draw(image)
    state, tone = preview.state
    edge = _RIGHT - (text_width(state, _LARGE) + 16 if state else 0)
    draw_text(pen, (_RIGHT, 32), state, (_LARGE, _colours()[tone]), "rm")
    _write(pen, (_LEFT, 32), preview.title, (_TITLE, INK), edge)
    draw_text(pen, (_RIGHT, 60), "Stagelens", (_USUAL, MUTED), "rm")
    _write(pen, (_LEFT, 60), preview.window, (_USUAL, MUTED), _RIGHT - 90)
    if preview.chart is not None:
        image.paste(Image.open(io.BytesIO(preview.chart)), (0, HEIGHT - CHART_HEIGHT * SHARP))
        _write_lines(pen, 82, preview.headline, _USUAL, 2)
    elif preview.bars:
        _write_facts(pen, preview.facts[:_MOST_FACTS])
        _draw_bars(pen, preview.bars)
        _write_legend(pen, preview.bars)
    else:
        _write_facts(pen, preview.facts[:_MOST_FACTS])
        _write_lines(pen, 165, preview.headline or "No numbers in this window", _LARGE, 5)
    return encode_png(image)


def _write(pen: ImageDraw.ImageDraw, at: tuple[float, float], text: str, style: tuple[int, str], right: float) -> None:
    draw_text(pen, at, fit_text(text, style[0], right - at[0]), style, "lm")


def _write_lines(pen: ImageDraw.ImageDraw, top: float, text: str, size: int, most: int) -> None:
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and len(lines) < most and text_width(longer, size) > _RIGHT - _LEFT:
            lines.append(word)
        else:
            lines[-1] = longer
    for number, line in enumerate(lines):
        _write(pen, (_LEFT, top + 1.25 * size * number), line, (size, INK), _RIGHT)


def _write_facts(pen: ImageDraw.ImageDraw, facts: Sequence[tuple[str, str]]) -> None:
    width = (_RIGHT - _LEFT) / max(len(facts), 1)
    for number, (name, value) in enumerate(facts):
        left = _LEFT + number * width
        _write(pen, (left, 93), name, (_USUAL, MUTED), left + width - 8)
        _write(pen, (left, 115), value, (_LARGE, INK), left + width - 8)


def _draw_bars(pen: ImageDraw.ImageDraw, bars: Sequence[Bar]) -> None:
    space = (_RIGHT - _LEFT) * _NAME_SHARE
    row = (_BARS_BOTTOM - _BARS_TOP) / max(len(bars), _COMPARED_BARS)
    height, size = min(_TALLEST_BAR, row * 0.8), _LARGE if len(bars) <= _COMPARED_BARS else _USUAL
    left = _LEFT + min(space, max(text_width(bar.name, size) for bar in bars)) + 12
    right = _RIGHT - max(text_width(duration(bar.seconds), size) for bar in bars) - 10
    longest = max(bar.seconds for bar in bars) or 1.0
    for number, bar in enumerate(bars):
        middle = _BARS_TOP + (number + 0.5) * row
        _write(pen, (_LEFT, middle), bar.name, (size, INK), left - 8)
        draw_text(pen, (_RIGHT, middle), duration(bar.seconds), (size, INK), "rm")
        _box(pen, (left, middle - height / 2, right, middle + height / 2), GRID)
        total, x = sum(max(each, 0.0) for each in bar.stages.values()) or 1.0, left
        for stage in ordered(bar.stages):
            width = (right - left) * bar.seconds / longest * max(bar.stages[stage], 0.0) / total
            _box(pen, (x, middle - height / 2, x + width, middle + height / 2), _stage_colour(stage))
            x += width


def _write_legend(pen: ImageDraw.ImageDraw, bars: Sequence[Bar]) -> None:
    spent: defaultdict[str, float] = defaultdict(float)
    for bar in bars:
        for stage, seconds in bar.stages.items():
            spent[stage] = max(spent[stage], seconds)
    largest = sorted(spent, key=lambda stage: -spent[stage])[:_MOST_STAGES]
    rows = _MOST_STAGES // _LEGEND_COLUMNS
    width = (_RIGHT - _LEFT) / (_LEGEND_COLUMNS if len(largest) > rows else 1)
    for number, stage in enumerate(largest):
        column, row = divmod(number, rows)
        left, middle = _LEFT + column * width, _LEGEND_TOP + row * _LEGEND_ROW
        _box(pen, (left, middle - 6, left + 12, middle + 6), _stage_colour(stage))
        right = left + min(width - 16, 400)
        if len(bars) <= _COMPARED_BARS:
            values = " → ".join(duration(bar.stages.get(stage, 0.0)) for bar in bars)
            draw_text(pen, (right, middle), values, (_USUAL, INK), "rm")
            right -= text_width(values, _USUAL) + 8
        _write(pen, (left + 19, middle), label(stage), (_USUAL, INK), right)


def _box(pen: ImageDraw.ImageDraw, box: tuple[float, float, float, float], colour: str) -> None:
    left, top, right, bottom = (round(each * SHARP) for each in box)
    if right > left:
        pen.rectangle((left, top, right - 1, bottom - 1), fill=colour)


def _stage_colour(stage: str) -> str:
    return _colours()[f"st-{hue(stage)}"]


@cache
def _colours() -> Mapping[str, str]:
    return dict(_COLOUR.findall(assets.text_of("tokens.css")))
