"""The store: histograms and kept traces in SQLite, added up on reading; the only door for pages and alerts."""

from __future__ import annotations

from .answers.indicators import Tally
from .answers.minutes import Group, MinuteCounts, SpentCounts
from .answers.services import StoreState
from .answers.slo import SloCounts
from .events import Event
from .indicator import Indicator
from .queries import Reader
from .records import Batch, KeptTrace, Point
from .retention import Retention
from .selection import Selection
from .series import Series, SeriesCaps
from .store import Store

__all__ = [
    "Batch",
    "Event",
    "Group",
    "Indicator",
    "KeptTrace",
    "MinuteCounts",
    "Point",
    "Reader",
    "Retention",
    "Selection",
    "Series",
    "SeriesCaps",
    "SloCounts",
    "SpentCounts",
    "Store",
    "StoreState",
    "Tally",
]
