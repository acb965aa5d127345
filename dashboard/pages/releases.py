"""The newest version of every service, judged against the one before: what got slower, what faster, what is too young.

The overview, the side bar and the page of regressions share these verdicts, so that they count alike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime

import pandas as pd

from ...alerts.reader import Incident
from .comparison import LIFETIME, SERVING, Comparison, Lives, compared, judged, lives, newest_pair
from .page import Context

# A release that is surely slower by less is listed, and nothing turns red or amber for it. [ratio]
MATERIAL = 1.1
_ORDER = {"regression": 0, "improvement": 1, "same": 2, "not_enough": 3}
_NO_STAGES = pd.DataFrame(columns=["stage", "a_seconds", "b_seconds", "delta_seconds", "share"])


@dataclass(frozen=True, slots=True)
class Release:
    """The newest version of one service.

    Args:
        context: The page's address, for this service.
        comparison: Against the version before.
        since: When it was first seen.
        rolled_back: Whether the version before serves on and this one does not.
        incident: What is open about the service, the gravest.
    """

    context: Context
    comparison: Comparison
    since: datetime
    rolled_back: bool
    incident: Incident | None

    @property
    def service(self) -> str:
        """Its name."""
        return self.context.service or ""

    @property
    def is_regression(self) -> bool:
        """Whether it is slower, surely, and serves."""
        return self.comparison.verdict.kind == "regression" and not self.rolled_back

    @property
    def is_clear(self) -> bool:
        """Whether it is surely so much slower that somebody should act: `MATERIAL`."""
        return self.is_regression and (self.comparison.verdict.ratio_low or 0.0) >= MATERIAL

    @property
    def href(self) -> str:
        """The comparison that says the same, with its evidence."""
        pair, at = self.comparison.pair, f"{self.comparison.quantile * 100:g}"
        return self.context.view.link("/compare", svc=self.service, a=pair.a_name, b=pair.b_name, p=at)


def regressions(context: Context) -> list[Release]:
    """Return the services whose newest version is slower than the one before, worst first."""
    return [each for each in judge_releases(context) if each.is_regression]


def judge_releases(context: Context) -> list[Release]:
    """Return the newest version of every service that had a release in the window or the last 7 days, worst first.

    One question tells the versions of all services. A release costs two more, and a third when it changed something; the
    same are answered from memory, see `pair`.
    """
    source = context.source
    known = lives(source.ask(source.read.releases, context.view.text("env")), context.view.past_end)
    oldest = min(context.view.start, context.at - LIFETIME)
    incidents = _open_incidents(context)
    found = [
        _release(context.of(service), versions, incidents.get(service))
        for service, versions in known.items()
        if max(each.start for each in versions.values()) >= oldest
    ]
    return sorted((each for each in found if each is not None), key=_severity)


def _release(context: Context, versions: Lives, incident: Incident | None) -> Release | None:
    pair = newest_pair(context, versions)
    if pair is None:
        return None
    before, newest = versions[pair.a_name], versions[pair.b_name]
    found, quantile = judged(context, pair)
    if found.kind in {"regression", "improvement"}:
        comparison = compared(context, pair, quantile)
    else:
        comparison = Comparison(pair, quantile, found, _NO_STAGES, ())
    return Release(context, comparison, newest.start, before.end - newest.end > SERVING, incident)


def _open_incidents(context: Context) -> dict[str, Incident]:
    """Return the gravest open incident of each service."""
    return {each.service: each for each in sorted(context.open_incidents, key=lambda each: each.severity == "page")}


def _severity(release: Release) -> tuple[int, bool, float, str]:
    """Return what sorts releases: by how much they surely changed, whatever incidents are open."""
    found = release.comparison.verdict
    sure = found.ratio_low if (found.ratio or 1.0) >= 1 else found.ratio_high
    size = abs(math.log(sure)) if sure and math.isfinite(sure) else 0.0
    return _ORDER[found.kind], release.rolled_back, -size, release.service
