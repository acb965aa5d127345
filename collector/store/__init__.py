"""The store: histograms and kept traces in SQLite, added up on reading; the only door for pages and alerts."""

from __future__ import annotations

from .queries import Reader
from .records import Batch, KeptTrace, Point
from .retention import Retention
from .selection import Selection
from .series import Series, SeriesCaps
from .services import StoreState
from .slo import SloCounts
from .store import Store

__all__ = [
    "Batch",
    "KeptTrace",
    "Point",
    "Reader",
    "Retention",
    "Selection",
    "Series",
    "SeriesCaps",
    "SloCounts",
    "Store",
    "StoreState",
]
