"""Histograms in Prometheus' text format, which has classic buckets alone.

Source: https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from . import buckets
from .counters import Counted

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def write(counted: Iterable[Counted]) -> bytes:
    """Return *counted* as text; a metric without histograms is left out."""
    return "".join(line for each in counted if each.labels for line in _family(each)).encode()


def _family(counted: Counted) -> Iterator[str]:
    name = counted.family.name
    yield f"# HELP {name} {counted.family.text}\n# TYPE {name} histogram\n"
    total = (counted.counts.sum(axis=1) + counted.zero).tolist()
    classic = (buckets.at_most(counted.counts, counted.bounds) + counted.zero[:, None]).tolist()
    ends = [f'le="{bound!r}"}} ' for bound in counted.bounds]
    for labels, held, number, spent in zip(counted.labels, classic, total, counted.sum.tolist(), strict=True):
        said = spell(labels)
        begin = f"{name}_bucket{{{said},"
        for end, count in zip(ends, held, strict=True):
            yield f"{begin}{end}{count}\n"
        yield f'{begin}le="+Inf"}} {number}\n{name}_count{{{said}}} {number}\n{name}_sum{{{said}}} {spent!r}\n'


def spell(labels: Sequence[tuple[str, str]]) -> str:
    r"""Return labels as they are written between braces.

    >>> spell([("route", '/a"b')])
    'route="/a\\"b"'
    """
    return ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels)
