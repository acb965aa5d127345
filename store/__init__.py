"""The store: histograms and retained traces in SQLite, PostgreSQL or ClickHouse; the only access of pages and alerts to data.

Names that need pandas, which takes 80 MB, are imported on first use (PEP 562), so a collector that only writes does not load
pandas.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .events import Event
from .points import Point
from .queries.minutes import Group
from .queries.state import StoreState
from .records import Batch, RetainedTrace
from .retention import Retention
from .selection import Indicator, Selection
from .series import Series, SeriesCaps
from .store import Store

if TYPE_CHECKING:
    from .queries.slo import Tally
    from .reader import Reader

__all__ = [
    "Batch",
    "Event",
    "Group",
    "Indicator",
    "Point",
    "Reader",
    "RetainedTrace",
    "Retention",
    "Selection",
    "Series",
    "SeriesCaps",
    "Store",
    "StoreState",
    "Tally",
]

_ON_FIRST_USE = {"Reader": ".reader", "Tally": ".queries.slo"}


def __getattr__(name: str) -> Any:
    if name in _ON_FIRST_USE:
        return getattr(import_module(_ON_FIRST_USE[name], __name__), name)
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
