"""Watches the tail of every service, of its routes and models, and of versions that serve together.

Once a minute the store says what all of them did, in one question; what follows from it is kept in the database. A verdict
says whether a series fires, not that it has begun to: whoever goes on after a crash says it again, and nobody is told twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from functools import partial

from ...store import Group, Store
from ..delivery.message import Finding
from ..evaluation.alert_rules import Verdict, planned
from ..objectives.slo_file import Definitions
from . import findings
from .canaries import Canaries
from .policy import TailPolicy, default_policy
from .search import Search
from .series import Watched, cause_of_group, whole_of
from .watching_policy import Watching, default_watching

# Under this name the work is done that comes before all verdicts; it never is an incident.
WORK = "tail:"
_KINDS = (WORK, "canary:")

Found = Iterable[tuple[str, Callable[[], Verdict | None]]]


class TailJudge:
    """Judges whether the tail of anything became slower.

    Args:
        store: Where the requests are, and where what was learnt is kept.
        policy: What matters.
        watching: What is done with it.
    """

    def __init__(
        self,
        store: Store,
        *,
        policy: TailPolicy | None = None,
        watching: Watching | None = None,
    ) -> None:
        self._read = store.read
        self._policy = policy or default_policy()
        self._watching = watching or default_watching()
        self._search = Search(store, self._policy, self._watching)

    def __call__(self, definitions: Definitions, now: datetime, before: Mapping[str, Finding]) -> Found:
        """Judge every service; first do what is to be done since the last time."""
        if not definitions.regressions.watched:
            return
        search, last = self._search, int((now - self._watching.delay).timestamp()) // 60
        yield WORK, partial(search.go_on, definitions.regressions, last, now)
        ready = search.read_until == last
        if ready:
            yield from ((WORK, partial(search.settle, each, last)) for each in search.unsettled())
            yield WORK, partial(search.learn, last, before)
        eye = findings.Eye(self._read, self._policy, self._watching, definitions.dashboard_url)
        for cause, verdict in self._verdicts(eye, definitions, now, before):
            yield cause, verdict if ready else _unknown
        if not ready:
            # What is open stays as it is until all is read.
            yield from ((cause, _unknown) for cause in before if cause.startswith(_KINDS))

    def _verdicts(
        self, eye: findings.Eye, definitions: Definitions, now: datetime, before: Mapping[str, Finding]
    ) -> Found:
        for cause, watched in self._search.series.items():
            excuse = _planned(definitions, watched.group, now)
            yield cause, partial(self._say, eye, watched, before.get(cause), excuse)
        for each in self._search.canaries.values():
            excuse = _planned(definitions, each.whole, now)
            yield each.cause, partial(self._say_canary, eye, each, before.get(each.cause), excuse)

    def _say(self, eye: findings.Eye, watched: Watched, before: Finding | None, excuse: str) -> Verdict | None:
        heard = watched.requests(_minutes(self._watching.silence)) > 0
        if watched.progress.fired_at is None or not heard:
            return Verdict(watched.cause, None, has_data=heard)
        if self._search.is_unsettled(watched):
            return Verdict(watched.cause, None)
        whole, at = whole_of(watched.group), watched.progress.at
        if before is not None and self._is_gone(whole, before.version):
            watched.begin_again(at - _minutes(self._watching.together))
            return Verdict(watched.cause, None)
        score = watched.judged.score if watched.judged else 0.0
        if before is None or (score >= 1 and at - watched.described_at >= _minutes(self._watching.refresh)):
            watched.described_at = at
            before = findings.describe(eye, watched, self._search.versions().get(whole, {}), before)
        return None if before is None else Verdict(watched.cause, before, excuse=excuse)

    def _is_gone(self, whole: Group, version: str) -> bool:
        """Say whether the *version* that was to blame serves no more, and another does."""
        canaries = self._search.canaries.get(whole)
        serving = canaries.serving() if canaries else set[str]()
        return bool(version and serving) and version not in serving

    def _say_canary(self, eye: findings.Eye, each: Canaries, before: Finding | None, excuse: str) -> Verdict | None:
        pair, whole = each.pair, self._search.series.get(cause_of_group(each.whole))
        if pair is None or pair.progress.fired_at is None or self._search.is_accepted(pair):
            return Verdict(each.cause, None)
        if whole is not None and not _is_of(before, pair.old, pair.new):
            before = findings.describe_canary(eye, pair, each.rows, whole.learnt.habits)
        return None if before is None else Verdict(each.cause, before, excuse=excuse)


def _unknown() -> None:
    """Nothing can be said now."""


def _is_of(finding: Finding | None, old: str, new: str) -> bool:
    """Say whether *finding* is of this pair of versions."""
    if finding is None or finding.shift is None:
        return False
    return (finding.shift.against, finding.where.get("version")) == (old, new)


def _planned(definitions: Definitions, group: Group, now: datetime) -> str:
    """Return which planned work of the service of *group* is under way where it is deployed, or nothing."""
    slos = (slo for slo in definitions.slos if slo.service == group.service)
    here = (slo.maintenance for slo in slos if slo.environment in (None, group.environment))
    return next((why for each in here if (why := planned(each, now))), "")


def _minutes(length: timedelta) -> int:
    return round(length / timedelta(minutes=1))
