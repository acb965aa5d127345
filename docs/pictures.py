"""Draw the pictures of docs/concepts.md, `docs/images/concept-*.svg`: of a request that was kept, and of sums done here.

    python docs/pictures.py

tests/docs/test_images.py holds them to this.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path

from stagelens.core.partition import Interval, partition
from stagelens.core.stages import label, ordered

IMAGES = Path(__file__).parent / "images"
WIDTH, MARGIN = 760, 24
# Those of the dashboard, light: each picture is a light card, on a dark page too.
COLOURS = {
    "forward": "#2661E5",
    "preprocess": "#2E9E70",
    "serialize": "#39704E",
    "network": "#9E4707",
    "queue": "#E08A00",
    "overhead": "#999FA6",
}
INK, FAINT, RULE, BAD = "#16181D", "#5B6472", "#D5D9E0", "#C62D36"

# A request to examples/start/fastapi-torch, as its kept trace tells. [microseconds]
REQUEST_END = 1194
REQUEST: tuple[Interval, ...] = (
    ("serialize", 67, 69),
    ("queue", 121, 183),
    ("preprocess", 195, 574),
    ("forward", 579, 842),
    ("queue", 860, 896),
    ("serialize", 900, 970),
    ("queue", 904, 939),
    ("queue", 942, 964),
    ("serialize", 971, 975),
    ("network", 983, 1088),
    ("network", 1089, 1193),
)


def picture(height: int, title: str, parts: Iterable[str]) -> str:
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    lines = (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" font-family="Inter, system-ui, sans-serif">',
        f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8" fill="#FFFFFF" stroke="{RULE}"/>',
        words(MARGIN, 32, title, bold=True),
        *parts,
        "</svg>\n",
    )
    return "\n".join(lines)


def words(x: float, y: float, text: str, *, colour: str = INK, anchor: str = "start", bold: bool = False) -> str:
    weight = 600 if bold else 400
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {place} fill="{colour}" font-size="13" font-weight="{weight}">{escape(text)}</text>'


def bar(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 1):.1f}" height="{height:.1f}" fill="{colour}"/>'


def line(start: tuple[float, float], end: tuple[float, float], colour: str = RULE, width: float = 1) -> str:
    (x1, y1), (x2, y2) = start, end
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="{colour}" stroke-width="{width}"/>'


def of_a_request() -> str:
    """Draw what was recorded of a request, one row a stage, and below it whose each microsecond was."""
    left, row = MARGIN + 90, 24
    scale = (WIDTH - MARGIN - left) / REQUEST_END
    parts: list[str] = []
    y = 50
    for stage in ordered({stage for stage, _, _ in REQUEST}):
        parts += [words(left - 12, y + 13, label(stage), anchor="end"), line((left, y + 9), (WIDTH - MARGIN, y + 9))]
        spans = [(start, end) for name, start, end in REQUEST if name == stage]
        parts += [bar(left + start * scale, y, (end - start) * scale, 18, COLOURS[stage]) for start, end in spans]
        y += row
    y += 26
    parts.append(words(MARGIN, y, "Whose time it was: each microsecond belongs to one stage", bold=True))
    own = partition(REQUEST, 0, REQUEST_END)
    x = float(left)
    parts.append(words(left - 12, y + 35, f"{REQUEST_END:,} µs =", anchor="end"))
    for stage in ordered(own):
        width = own[stage] * scale
        parts.append(bar(x, y + 14, width, 32, COLOURS[stage]))
        parts.append(words(x + width / 2, y + 64, label(stage), anchor="middle"))
        parts.append(words(x + width / 2, y + 81, str(own[stage]), anchor="middle", colour=FAINT))
        x += width
    return picture(y + 100, "What was recorded: stages may lie inside one another", parts)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that *share* of *values* do not exceed."""
    return sorted(values)[round(share * len(values)) - 1]


def of_two_tails() -> str:
    """Draw why the p99 of two stages do not add up to the p99 of the requests."""
    usual, slow, many, few = 10.0, 100.0, 1000, 15
    queue = [slow if number < few else usual for number in range(many)]
    forward = [slow if number >= many - few else usual for number in range(many)]
    whole = [one + other for one, other in zip(queue, forward, strict=True)]
    at = [number for number, value in enumerate(whole) if value == percentile(whole, 0.99)]
    rows = (
        ("p99 of each stage, added", percentile(forward, 0.99), percentile(queue, 0.99), BAD, ": no request took that"),
        ("the requests at p99", *(sum(each[at_] for at_ in at) / len(at) for each in (forward, queue)), INK, ""),
        ("the median request", percentile(forward, 0.5), percentile(queue, 0.5), INK, ""),
    )
    left = MARGIN + 170
    scale = (WIDTH - MARGIN - left - 240) / (2 * slow)
    parts: list[str] = []
    for number, (name, of_forward, of_queue, colour, remark) in enumerate(rows):
        y, x = 52 + number * 44, left + of_forward * scale
        parts += [
            words(left - 12, y + 19, name, anchor="end"),
            bar(left, y, of_forward * scale, 28, COLOURS["forward"]),
            bar(x, y, of_queue * scale, 28, COLOURS["queue"]),
        ]
        end, total = x + of_queue * scale, f"{of_forward + of_queue:.0f} ms{remark}"
        parts.append(words(end + 8, y + 19, total, colour=colour, bold=True))
    y = 52 + len(rows) * 44 + 10
    for number, stage in enumerate(("forward", "queue")):
        parts += [
            bar(left + number * 100, y, 12, 12, COLOURS[stage]),
            words(left + number * 100 + 18, y + 11, label(stage)),
        ]
    title = f"{many:,} requests: {few} are slow in the model, {few} others wait long in the queue"
    return picture(y + 34, title, parts)


def of_two_replicas() -> str:
    """Draw why percentiles of replicas are not averaged."""
    busy, idle = [20.0] * 9800 + [50.0] * 200, [20.0] * 50 + [500.0] * 50
    one, other = percentile(busy, 0.99), percentile(idle, 0.99)
    rows: Mapping[str, tuple[float, str]] = {
        f"replica A, {len(busy):,} requests": (one, FAINT),
        f"replica B, {len(idle):,} requests": (other, FAINT),
        "the mean of the two": ((one + other) / 2, BAD),
        "all requests, their counts added": (percentile([*busy, *idle], 0.99), COLOURS["forward"]),
    }
    left = MARGIN + 220
    scale = (WIDTH - MARGIN - left - 80) / max(one, other)
    parts: list[str] = []
    for number, (name, (value, colour)) in enumerate(rows.items()):
        y = 50 + number * 34
        parts.append(words(left - 12, y + 16, name, anchor="end"))
        parts.append(bar(left, y, value * scale, 22, colour))
        parts.append(words(left + value * scale + 8, y + 16, f"{value:.0f} ms", bold=True))
    return picture(50 + len(rows) * 34 + 16, "p99 of two replicas", parts)


def of_a_budget() -> str:
    """Draw what is left of a budget of 30 days at four burn rates."""
    days, left, right, top, bottom = 30, MARGIN + 50, WIDTH - MARGIN - 130, 56, 236
    parts: list[str] = []
    for percent in (0, 50, 100):
        y = bottom - percent / 100 * (bottom - top)
        parts += [line((left, y), (right, y)), words(left - 10, y + 5, f"{percent} %", colour=FAINT, anchor="end")]
    for day in range(0, days + 1, 10):
        x = left + day / days * (right - left)
        parts.append(words(x, bottom + 22, f"day {day}", colour=FAINT, anchor="middle"))
    rates = {0.5: COLOURS["preprocess"], 1.0: INK, 3.0: COLOURS["queue"], 14.4: BAD}
    for rate, colour in rates.items():
        gone = min(days / rate, days)
        spent = min(rate * gone / days, 1)
        x, y = left + gone / days * (right - left), top + spent * (bottom - top)
        parts.append(line((left, top), (x, y), colour, 2.5))
        after = "half is left" if rate < 1 else f"day {gone:.0f}"
        parts.append(words(x + 8, y - 8, f"{rate:g}: {after}", colour=colour, bold=True))
    return picture(bottom + 42, "What is left of an error budget of 30 days, by burn rate, and when it is gone", parts)


def pictures() -> dict[str, str]:
    return {
        "concept-partition.svg": of_a_request(),
        "concept-tails.svg": of_two_tails(),
        "concept-replicas.svg": of_two_replicas(),
        "concept-budget.svg": of_a_budget(),
    }


if __name__ == "__main__":
    for file, content in pictures().items():
        (IMAGES / file).write_text(content)
