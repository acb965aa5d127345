"""Which charts a control of their page may redraw without the rest of it: name to builder, from the address alone."""

from __future__ import annotations

from collections.abc import Callable

from ..figures.parts import Figure
from . import service_charts
from .page import Context

CHARTS: dict[str, Callable[[Context], Figure]] = {**service_charts.CHARTS}
