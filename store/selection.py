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
    """The requests of `[start, end)` with the given dimensions; None takes all.

    Args:
        start: Aware; the first 10 s bucket starts at or after it.
        end: Aware; the last 10 s bucket starts before it.
        service: `service.name`.
        version: `service.version`.
        environment: `deployment.environment.name`.
        model: `inference.model.name`.
        route: `http.route`.
        status: `ok` or `error`.
        cold: "0" leaves out requests in which something was loaded or warmed up, "1" takes only those.
    """

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
        """Start and end, rounded to 10 s buckets, in Unix seconds."""
        return _bucket(self.start), _bucket(self.end)

    @property
    def is_of_services(self) -> bool:
        """Whether it includes all requests of its services."""
        return {self.version, self.environment, self.model, self.route, self.status, self.cold} == {None}

    @property
    def is_fine(self) -> bool:
        """Whether it is finer than a total, see `schema.TOTAL_DIMENSIONS`."""
        return self.model is not None or self.route is not None

    def conditions(self) -> list[ColumnElement[bool]]:
        """Return the conditions on the rows of `series`."""
        wanted = {
            "service": self.service,
            "version": self.version,
            "environment": self.environment,
            "model": self.model,
            "route": self.route,
            "status": self.status,
            "cold": self.cold,
        }
        return [schema.series.c[name] == storable_name(value) for name, value in wanted.items() if value is not None]


def _bucket(at: datetime) -> int:
    if at.tzinfo is None:
        msg = f"times must be aware, got {at!r}; write datetime.now(UTC)"
        raise ValueError(msg)
    return ceil_to(math.ceil(at.timestamp()), schema.FINEST)


def step_seconds(step: timedelta) -> int:
    """Return *step* rounded up to a width that tiers can be read at: whole buckets of the widest tier not wider than it."""
    wanted = max(math.ceil(step.total_seconds()), schema.FINEST)
    widest = max(tier for tier in schema.TIERS if tier <= wanted)
    return ceil_to(wanted, widest)


def moment(seconds: int) -> datetime:
    """Return Unix *seconds* as an aware datetime."""
    return datetime.fromtimestamp(seconds, UTC)


Kind = Literal["latency", "ttft", "tpot", "stage", "availability", "coverage", "freshness"]
# Kinds that count the values of one histogram above a threshold.
HISTOGRAMS: dict[Kind, str] = {
    "latency": REQUEST_DURATION,
    "availability": REQUEST_DURATION,
    "ttft": FIRST_TOKEN,
    "tpot": OUTPUT_TOKEN,
    "stage": STAGE_DURATION,
}


@dataclass(frozen=True, slots=True)
class Indicator:
    """A service level indicator: what is counted, and which part of it is bad.

    - `latency`: requests; bad are those that failed or took longer than the threshold.
    - `availability`: requests; bad are those that failed.
    - `ttft`, `tpot`: requests that had a first token, or a second; bad are those whose time to the first token, or mean
      time from one token to the next, is above the threshold. What failed before is not among them: that is availability's.
    - `stage`: requests that had the stage; bad are those that spent longer in it.
    - `coverage`: the time of all requests; bad is what no stage explains, `overhead`.
    - `freshness`: minutes since the first data; bad are those at whose end the newest data were older than the threshold.

    Args:
        kind: The kind.
        threshold_seconds: Values above it are bad; None for `availability` and `coverage`.
        key: Stage of `stage`; definition of `ttft` and `tpot`, None for all.
    """

    kind: Kind
    threshold_seconds: float | None = None
    key: str | None = None
