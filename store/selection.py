"""Selection of requests for a query, and the indicator that separates good from bad requests."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

from sqlalchemy import ColumnElement

from ..core.names import FIRST_TOKEN, OUTPUT_TOKEN, REQUEST_DURATION, STAGE_DURATION
from . import schema
from .schema import ceil_to, storable_name


@dataclass(frozen=True, slots=True)
class Selection:
    """Requests in `[start, end)` with the given dimensions; None selects all values."""

    start: datetime
    end: datetime
    service: str | None = None
    version: str | None = None
    environment: str | None = None
    model: str | None = None
    route: str | None = None
    status: str | None = None
    cold: str | None = None

    @property
    def seconds(self) -> tuple[int, int]:
        """Start and end of the window, rounded up to 10 s buckets, in Unix seconds."""
        return _bucket(self.start), _bucket(self.end)

    @property
    def is_of_services(self) -> bool:
        return {self.version, self.environment, self.model, self.route, self.status, self.cold} == {None}

    @property
    def is_fine(self) -> bool:
        """Whether the selection is finer than a total, see `schema.TOTAL_DIMENSIONS`."""
        return self.model is not None or self.route is not None

    @property
    def dimensions(self) -> dict[str, str]:
        wanted = {
            "service": self.service,
            "version": self.version,
            "environment": self.environment,
            "model": self.model,
            "route": self.route,
            "status": self.status,
            "cold": self.cold,
        }
        return {name: storable_name(value) for name, value in wanted.items() if value is not None}

    def conditions(self) -> list[ColumnElement[bool]]:
        return [schema.series.c[name] == value for name, value in self.dimensions.items()]


def _bucket(at: datetime) -> int:
    if at.tzinfo is None:
        msg = f"times must be aware, got {at!r}; write datetime.now(UTC)"
        raise ValueError(msg)
    return ceil_to(math.ceil(at.timestamp()), schema.FINEST)


def step_seconds(step: timedelta) -> int:
    """Return *step* rounded up to whole hours, minutes or buckets of the finest tier, the widest of these that fits, in seconds."""
    wanted = max(math.ceil(step.total_seconds()), schema.FINEST)
    widest = max(unit for unit in (schema.FINEST, 60, 3600) if unit <= wanted)
    return ceil_to(wanted, widest)


def moment(seconds: float) -> datetime:
    """Return Unix *seconds* as an aware datetime."""
    return datetime.fromtimestamp(seconds, UTC)


Kind = Literal["latency", "ttft", "tpot", "stage", "availability", "coverage", "freshness"]
# Metric of each kind of indicator that counts the values of one histogram above a threshold.
HISTOGRAMS: dict[Kind, str] = {
    "latency": REQUEST_DURATION,
    "availability": REQUEST_DURATION,
    "ttft": FIRST_TOKEN,
    "tpot": OUTPUT_TOKEN,
    "stage": STAGE_DURATION,
}


@dataclass(frozen=True, slots=True)
class Indicator:
    """Service level indicator: the counted events, and the condition that makes an event bad.

    - `latency`: all requests; bad if the request failed or took longer than the threshold.
    - `availability`: all requests; bad if the request failed.
    - `ttft`, `tpot`: requests with a first token, or with a second token; bad if the time to the first token, or the mean time
      between tokens, is above the threshold. Requests that failed before that token are not counted; see `availability`.
    - `stage`: requests with the stage; bad if the time in the stage is above the threshold.
    - `coverage`: the time of all requests; bad is the time that no stage explains, `overhead`.
    - `freshness`: minutes since the first data; bad if at the end of the minute the newest data were older than the threshold.
    """

    kind: Kind  # Kind of the indicator
    # Threshold above which a value is bad; None for `availability` and `coverage`. [seconds]
    threshold_seconds: float | None = None
    key: str | None = None  # Stage of `stage`; definition of `ttft` and `tpot`, None for all definitions
