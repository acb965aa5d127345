"""What a message about a slower tail shows beside its numbers: how it went so far, and a few slow requests to look at."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from ...store import Group, Reader
from ..delivery.finding_parts import Course, Exemplar
from ..evaluation.evidence import exemplar
from ..evaluation.links import CALM_BEFORE
from ..evaluation.links import link as link_of
from ..objectives.slo import Slo
from .group_learning import select
from .series import moment

# So many requests are shown, found among so many of the slowest; a picture in a message is small.
_SHOWN, _LOOKED_AT, _POINTS = 3, 30, 60


def about(group: Group, quantile: float) -> Slo:
    """Return *group* as what links and selections are made of."""
    whole = select(group, 0, 0)
    return Slo(
        "tail",
        group.service,
        quantile,
        timedelta(days=1),
        environment=whole.environment,
        route=whole.route,
        model=whole.model,
        version=whole.version,
    )


def link(dashboard_url: str, slo: Slo, times: tuple[int, int, int], quantile: float) -> str:
    """Return the page that shows it; of requests that name no environment, that of all."""
    began, _, now = times
    shown = replace(slo, environment=slo.environment or None)
    return link_of(dashboard_url, shown, moment(began), moment(now), quantile)


def slow_requests(
    read: Reader, slo: Slo, times: tuple[int, int, int], usual_seconds: float, dashboard_url: str
) -> tuple[Exemplar, ...]:
    """Return kept requests that took longer than is usual there: the slowest of each cause, slowest first."""
    found = read.one_per_cause(slo.select(moment(times[0]), moment(times[2])), _LOOKED_AT)
    shown = found[found["duration_seconds"] > usual_seconds].head(_SHOWN)
    return tuple(exemplar(row, dashboard_url) for row in shown.to_dict("records"))


def course(read: Reader, slo: Slo, times: tuple[int, int, int], quantile: float | None) -> Course | None:
    """Return how what became slower went: in the trouble, and in as long before it."""
    began, _, now = times
    length = max(2 * (now - began), now - began + round(CALM_BEFORE / timedelta(minutes=1)))
    step = -(-length // _POINTS)
    start = (now - length) // step * step
    frame = read.breakdown_over_time(slo.select(moment(start), moment(now)), quantile, timedelta(minutes=step))
    width = round(frame.attrs["step_seconds"])
    if frame.empty:
        return None
    numbers = [(round(at.timestamp()) - 60 * start) // width for at in frame["at"]]
    values = dict(zip(numbers, frame["value_seconds"].tolist(), strict=True))
    began_at = round(frame["at"].iloc[0].timestamp()) - width * numbers[0]
    return Course(tuple(values.get(number) for number in range(max(values) + 1)), float(width), float(began_at))
