"""Every service in a few numbers, all from one answer: what the overview and the side bar show.

They are the numbers of the service's own page: the same requests, added up by the same code.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Literal

import numpy as np
import pandas as pd

from ...alerts.evaluation.slo_status import URGENCY, SloState, SloStatus
from ...alerts.reader import Incident
from ...store import Reader
from ..components import ratio_of
from ..figures.percentile import COLUMNS, PERCENTILES
from ..source import Source
from .measures import AT_P50, AT_P99, NO_REQUESTS, TELLING, Measures, smooth, told
from .page import Context
from .regressions import Release, regressions
from .service_status import ServiceStatus, incidents_of, service_status, slos_of, urgency_of

# What a service that generates tokens does; speech decodes too, and has no prompt.
_TOKEN_STAGES = {"prefill", "decode"}
KINDS = {"llm": "LLM", "model": "Model", "other": "Other"}


@dataclass(frozen=True, slots=True)
class Seen:
    """What one service did in a window.

    Args:
        service: Its name.
        model: Its model, empty where it named none.
        first_seen: When the first request of the window came.
        last_seen: When the last one came.
        measures: Its requests in a few numbers.
    """

    service: str
    model: str
    first_seen: datetime
    last_seen: datetime
    measures: Measures

    @property
    def kind(self) -> str:
        """What sort of service it is, one of `KINDS`, as far as its stages and its model say."""
        stages = {*self.measures.median_stages, *self.measures.tail_stages}
        if stages >= _TOKEN_STAGES:
            return "llm"
        return "model" if self.model or "forward" in stages else "other"


@dataclass(frozen=True)
class Row:
    """One service of the fleet.

    Args:
        fleet: The page it stands on.
        context: The service alone.
        seen: What it did in the window.
        slos: Its objectives.
        incidents: Its open incidents.
        release: Its newest version where that is clearly slower than the one before.
    """

    fleet: Context
    context: Context
    seen: Seen
    slos: tuple[SloStatus, ...]
    incidents: tuple[Incident, ...]
    release: Release | None

    @property
    def slo(self) -> SloStatus | None:
        """Its most urgent objective; of equals one about latency, and the one that burns faster."""
        return min(self.slos, key=urgency_of, default=None)

    @cached_property
    def status(self) -> ServiceStatus:
        """How it stands."""
        return service_status(self.context.view, self.slos, self.incidents, self.release)

    @property
    def service(self) -> str:
        """Its name."""
        return self.seen.service

    @property
    def now(self) -> Measures:
        """Its requests in the window."""
        return self.seen.measures

    @property
    def before(self) -> Measures:
        """Its requests in the window that this one is compared with."""
        seen = self.fleet.once(seen_before).get(self.service)
        return seen.measures if seen else NO_REQUESTS

    @property
    def seconds(self) -> float:
        """How much of the window lies within its history: as on its own page."""
        first, last = self.fleet.axis.counted
        return max((last - max(first, self.fleet.once(_begun).get(self.service, first))).total_seconds(), 1.0)

    @property
    def state(self) -> SloState | Literal[""]:
        """How it stands; "" where nothing is known."""
        return self.status.state

    @property
    def p99_change(self) -> float | None:
        """How much p99 changed against the window that this one is compared with; None without such a window."""
        return ratio_of(self.now.p99, self.before.p99)

    @property
    def urgency(self) -> tuple[int, float, str]:
        """Where it stands among others: those that burn first."""
        return URGENCY[self.state or "healthy"], -(self.slo.burn_1h if self.slo else 0.0), self.service


def seen_in(context: Context) -> dict[str, Seen]:
    """Return the services with requests in the window of *context*, by name."""
    view = context.view
    return _seen(context.source, view.start, view.end, view.text("env"))


def seen_before(context: Context) -> dict[str, Seen]:
    """Return the same of the window it is compared with; empty where it is compared with none."""
    before = context.previous
    return {} if before is None else _seen(context.source, before.start, before.end, before.environment)


def _begun(context: Context) -> dict[str, datetime]:
    """Return when the history of each service begins."""
    known = context.source.ask(context.source.read.releases, context.view.text("env"))
    return {str(name): at.to_pydatetime() for name, at in known.groupby("service")["first_seen"].min().items()}


def urgent_first(context: Context) -> list[Row]:
    """Return the services of the window, those that burn their budget first."""
    return context.once(_urgent_first)


def _urgent_first(context: Context) -> list[Row]:
    seen = seen_in(context)
    slower = {each.service: each for each in context.once(regressions) if each.is_clear}
    rows = [
        Row(
            fleet=context,
            context=context.of(name),
            seen=each,
            slos=slos_of(context, name),
            incidents=incidents_of(context, name),
            release=slower.get(name),
        )
        for name, each in seen.items()
    ]
    return sorted(rows, key=lambda row: row.urgency)


def _seen(source: Source, start: datetime, end: datetime, environment: str | None) -> dict[str, Seen]:
    return source.ask(measured, source.read, start, end, environment)


def measured(read: Reader, start: datetime, end: datetime, environment: str | None) -> dict[str, Seen]:
    """Return what every service did in `[start, end)`, by name, from two questions however many there are."""
    known = read.services(start, end, environment=environment)
    places = np.array(TELLING)
    frame = read.fleet(start, end, [PERCENTILES[place] for place in TELLING], environment=environment)
    stages = [str(each) for each in frame.columns if each not in COLUMNS]
    shape = (len(frame) // len(TELLING), len(TELLING))
    total = frame["value_seconds"].to_numpy(dtype=float).reshape(shape)
    seconds = frame[stages].to_numpy(dtype=float).reshape(*shape, len(stages))
    n = frame["n"].to_numpy(dtype=float).reshape(shape)
    around = smooth(seconds, total, n, places, np.array((AT_P50, AT_P99)))
    values = total[:, np.searchsorted(places, (AT_P50, AT_P99))]
    latency = dict(zip(frame.index[:: len(TELLING)], zip(values.tolist(), around.tolist(), strict=True), strict=True))
    made: dict[str, Seen] = {}
    for row in known.to_dict("records"):
        name = str(row["service"])
        if name in latency:
            made[name] = _seen_of({str(key): value for key, value in row.items()}, *latency[name], stages)
    return made


def _seen_of(row: dict[str, object], values: list[float], around: list[list[float]], stages: list[str]) -> Seen:
    requests, errors = int(str(row["requests"])), int(str(row["errors"]))
    median, tail = ({stage: each for stage, each in zip(stages, some, strict=True) if each > 0} for some in around)
    measures = told(requests, errors, (values[0], values[1]), (median, tail))
    first, last = (pd.Timestamp(str(row[name])).to_pydatetime() for name in ("first_seen", "last_seen"))
    return Seen(str(row["service"]), str(row["model"]), first, last, measures)
