"""Watches the tail of every service, of its routes and models, and of versions that serve together.

Once a minute the store says what all of them did, in one question; what follows from it is kept in the database. A verdict
says whether a series fires, not that it has begun to: whoever goes on after a crash says it again, and nobody is told twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from functools import partial

from ...collector.store import Group, Store
from ..delivery.message import Finding
from ..objectives.regressions import Regressions
from ..objectives.slo_file import Definitions
from ..policy_file import default_policy as default_burn_policy
from ..tail.policy import TailPolicy, default_policy
from ..tail.watch import Progress
from ..verdict import Verdict, planned
from . import findings, kept
from .canaries import Canaries
from .learning import DAY, learn
from .policy import Watching, default_watching
from .series import Watched, cause_of_group, longest, moment

# Under this name the work is done that comes before all verdicts; it never is an incident.
WORK = "tail:"
_KINDS = (WORK, "canary:")
# Who had no request for so long is not watched any more: longer than an incident waits for data.
_KNOWN_MINUTES = 2 * DAY

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
        self._store = store
        self._policy = policy or default_policy()
        self._watching = watching or default_watching()
        self._regressions = Regressions()
        self._groups: dict[Group, int] = {}
        self._series: dict[str, Watched] = {}
        self._canaries: dict[str, Canaries] = {}
        self._tried: dict[Group, int] = {}
        self._standing: dict[str, Progress] = {}
        # Up to where the store was read, and up to where this process has written that all was judged.
        self._read_until: int | None = None
        self._written: int | None = None

    def __call__(self, definitions: Definitions, now: datetime, before: Mapping[str, Finding]) -> Found:
        """Judge every service; first do what is to be done since the last time."""
        self._regressions = definitions.regressions
        if not self._regressions.watched:
            return
        last = int((now - self._watching.delay).timestamp()) // 60
        yield WORK, partial(self._go_on, last, now)
        if self._read_until == last:
            yield WORK, partial(self._learn, last, before)
        ready = self._read_until == last
        eye = findings.Eye(self._store.read, self._policy, self._watching, definitions.dashboard_url)
        for cause, verdict in self._verdicts(eye, definitions, now, before):
            yield cause, verdict if ready else _unknown
        if not ready:
            # What is open stays as it is until all is read.
            yield from ((cause, _unknown) for cause in before if cause.startswith(_KINDS))

    def _verdicts(
        self, eye: findings.Eye, definitions: Definitions, now: datetime, before: Mapping[str, Finding]
    ) -> Found:
        for cause, watched in self._series.items():
            excuse = _planned(definitions, watched.group.service, now)
            yield cause, partial(self._say, eye, watched, before.get(cause), excuse)
        for each in self._canaries.values():
            excuse = _planned(definitions, each.service, now)
            yield each.cause, partial(self._say_canary, eye, each, before.get(each.cause), excuse)

    def _go_on(self, last: int, now: datetime) -> None:
        """Read and judge the next stretch up to minute *last*, unless the collector does not see what there is."""
        if self._store.read.stale_since(now, default_burn_policy().stale) is not None:
            return
        with self._store.transaction() as connection:
            others = kept.last_minute(connection)
        if self._read_until is None or (others is not None and others != self._written and others > self._read_until):
            self._load(last)
        start = self._read_until
        if start is None or start >= last:
            return
        end = min(start + _minutes(self._watching.stretch), last)
        broken = self._stretch(start, end)
        if end == last:
            self._write(last)
        self._read_until = end
        if broken:
            raise broken[0]

    def _load(self, last: int) -> None:
        """Take over what is kept, by whatever process it was written."""
        with self._store.transaction() as connection:
            learnt, self._standing = kept.load_learnt(connection), kept.load_progress(connection)
            self._written = kept.last_minute(connection)
        earliest = last - _minutes(self._watching.catch_up)
        self._groups = self._known(last)
        self._series, self._canaries = {}, {}
        for group in self._groups:
            cause = cause_of_group(group)
            if cause in learnt and group.dimension != "version":
                progress = _from(self._standing.get(cause, Progress(at=last)), earliest)
                self._series[cause] = Watched(group, self._policy, learnt[cause], progress)
        begun = [each.progress.at for each in self._series.values()]
        self._read_until = min(begun) - longest(self._policy) if begun else last

    def _known(self, last: int) -> dict[Group, int]:
        found = self._store.read.groups(moment(last - _KNOWN_MINUTES))
        return {
            group: int(first.timestamp()) // 60
            for group, first in found.items()
            if self._regressions.watches(group.service)
        }

    def _stretch(self, start: int, end: int) -> list[Exception]:
        """Judge the minutes of [start, end) of everything; return why something could not be."""
        self._groups = self._known(end)
        found = self._store.read.all_minutes(moment(start), moment(end))
        versions = self._versions()
        self._series = {cause: each for cause, each in self._series.items() if each.group in self._groups}
        self._canaries = {service: each for service, each in self._canaries.items() if service in versions}
        broken: list[Exception] = []
        for each in self._series.values():
            seen = versions.get(each.group.service, {})
            try:
                each.go_on(found.get(each.group), start, end, frozenset(sorted(seen.values())[1:]))
                if seen and not each.group.dimension:
                    self._canaries_of(each).go_on(found, seen, (start, end), self._standing)
            except Exception as error:  # noqa: BLE001 - raised when all others had their turn
                broken.append(error)
        return broken

    def _canaries_of(self, whole: Watched) -> Canaries:
        rows, service = whole.learnt.reference.rows, whole.group.service
        return self._canaries.setdefault(service, Canaries(service, rows, self._policy, self._watching))

    def _versions(self) -> dict[str, dict[str, int]]:
        """Return the versions of each service that has several, and the minute each was first seen in."""
        found: dict[str, dict[str, int]] = {}
        for group, first in self._groups.items():
            if group.dimension == "version":
                found.setdefault(group.service, {})[group.value] = first
        return found

    def _write(self, last: int) -> None:
        pairs = [each.pair for each in self._canaries.values() if each.pair is not None]
        standing = {cause: each.progress for cause, each in self._series.items()}
        standing.update({pair.key: pair.progress for pair in pairs})
        with self._store.transaction() as connection:
            kept.save_progress(connection, standing, last)
            kept.forget(connection, last - self._policy.reference.length)
        self._written = last

    def _learn(self, last: int, before: Mapping[str, Finding]) -> None:
        """Learn what is normal for one series, if it is time for any."""
        group = self._to_learn(last, before)
        if group is None:
            return
        self._tried[group] = last
        span = self._groups[group], last
        found = learn(self._store.read, self._policy, self._watching.busy, group, span)
        if found is None:
            return
        learnt, recent = found
        cause = cause_of_group(group)
        with self._store.transaction() as connection:
            kept.save_learnt(connection, cause, learnt)
        if cause in self._series:
            self._series[cause].renew(learnt, recent)
        else:
            self._series[cause] = Watched(group, self._policy, learnt, Progress(at=last), recent)

    def _to_learn(self, last: int, before: Mapping[str, Finding]) -> Group | None:
        """Return the group that waits longest: first those of which nothing is known; none while it fires."""
        span = self._policy.reference
        waiting: dict[Group, int] = {}
        for group, first in self._groups.items():
            cause = cause_of_group(group)
            known = self._series.get(cause)
            learnt_at = known.learnt.at if known else 0
            due = last - max(learnt_at, self._tried.get(group, 0)) >= span.renew and last - first >= span.least
            fires = cause in before or (known is not None and known.progress.fired_at is not None)
            if due and not fires and group.dimension != "version":
                waiting[group] = learnt_at
        return min(
            waiting, key=lambda group: (waiting[group], group.dimension, group.service, group.value), default=None
        )

    def _say(self, eye: findings.Eye, watched: Watched, before: Finding | None, excuse: str) -> Verdict | None:
        heard = watched.requests(_minutes(self._watching.silence)) > 0
        if watched.progress.fired_at is None or not heard:
            return Verdict(watched.cause, None, has_data=heard)
        if before is not None and self._is_gone(watched.group.service, before.version):
            watched.begin_again(_minutes(self._watching.together))
            return Verdict(watched.cause, None)
        score = watched.judged.score if watched.judged else 0.0
        at = watched.progress.at
        if before is None or (score >= 1 and at - watched.described_at >= _minutes(self._watching.refresh)):
            watched.described_at = at
            before = findings.describe(eye, watched, self._versions().get(watched.group.service, {}), before)
        return None if before is None else Verdict(watched.cause, before, excuse=excuse)

    def _is_gone(self, service: str, version: str) -> bool:
        """Say whether the *version* that was to blame serves no more, and another does."""
        serving = self._canaries[service].serving() if service in self._canaries else set[str]()
        return bool(version and serving) and version not in serving

    def _say_canary(self, eye: findings.Eye, each: Canaries, before: Finding | None, excuse: str) -> Verdict | None:
        pair, whole = each.pair, self._series.get(cause_of_group(Group(each.service)))
        if pair is None or pair.progress.fired_at is None:
            return Verdict(each.cause, None)
        if whole is not None and not _is_of(before, pair.old, pair.new):
            before = findings.describe_canary(eye, pair, whole.learnt, None)
        return None if before is None else Verdict(each.cause, before, excuse=excuse)


def _unknown() -> None:
    """Nothing can be said now."""


def _is_of(finding: Finding | None, old: str, new: str) -> bool:
    """Say whether *finding* is of this pair of versions."""
    if finding is None or finding.shift is None:
        return False
    return (finding.shift.against, finding.where.get("version")) == (old, new)


def _from(progress: Progress, earliest: int) -> Progress:
    """Return *progress* as it goes on at *earliest* when the minutes before are left out."""
    if progress.at >= earliest:
        return progress
    return Progress(at=earliest, fired_at=progress.fired_at, released_at=progress.released_at)


def _planned(definitions: Definitions, service: str, now: datetime) -> str:
    """Return which planned work of *service* is under way, or nothing."""
    calendars = (slo.maintenance for slo in definitions.slos if slo.service == service)
    return next((why for each in calendars if (why := planned(each, now))), "")


def _minutes(length: timedelta) -> int:
    return round(length / timedelta(minutes=1))
