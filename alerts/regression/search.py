"""All series that are watched, as this process knows them: read from the store, learnt, judged, and kept for the next one."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta

from ...store import Group, Store
from ..objectives.regressions import Regressions
from ..policy_file import default_policy as default_burn_policy
from . import levels, state_store
from .alarm import Progress
from .canaries import Canaries, Pair
from .group_learning import DAY, learn
from .policy import TailPolicy
from .series import Watched, cause_of_group, longest, moment, whole_of
from .state_store import Accepted
from .watching_policy import Watching

# Who had no request for so long is not watched any more: longer than an incident waits for data.
_KNOWN_MINUTES = 2 * DAY


class Search:
    """Goes through the minutes of all series.

    Args:
        store: Where the requests are, and where what was learnt is kept.
        policy: What matters.
        watching: What is done with it.

    Attributes:
        series: What is watched, by cause.
        canaries: The versions of each service.
        read_until: Up to where the store was read; None before anything was. [minutes since the epoch]
    """

    def __init__(self, store: Store, policy: TailPolicy, watching: Watching) -> None:
        self._store = store
        self._policy = policy
        self._watching = watching
        self._regressions = Regressions()
        self.series: dict[str, Watched] = {}
        self.canaries: dict[Group, Canaries] = {}
        self.read_until: int | None = None
        self._groups: dict[Group, int] = {}
        self._tried: dict[Group, int] = {}
        self._standing: dict[str, Progress] = {}
        self._accepted: dict[str, Accepted] = {}
        # Up to where this process has written that all was judged.
        self._written: int | None = None

    def go_on(self, regressions: Regressions, last: int, now: datetime) -> None:
        """Read and judge the next stretch up to minute *last*, unless the collector does not see what there is."""
        self._regressions = regressions
        with self._store.transaction() as connection:
            others = state_store.last_minute(connection)
            self._accepted = state_store.load_accepted(connection)
        if self._store.read.stale_since(now, default_burn_policy().stale) is not None:
            return
        if self.read_until is None or (others is not None and others != self._written and others > self.read_until):
            self._load(last)
        start = self.read_until
        if start is None or start >= last:
            return
        end = min(start + round(self._watching.stretch / timedelta(minutes=1)), last)
        broken = self._stretch(start, end)
        if end == last:
            self._write(last)
        self.read_until = end
        if broken:
            raise broken[0]

    def learn(self, last: int, firing: Collection[str]) -> None:
        """Learn what is normal for one series, if it is time for any; for none of *firing*, by cause."""
        group = self._to_learn(last, firing)
        if group is None:
            return
        self._tried[group] = last
        span = self._known_from(group), last
        found = learn(self._store.read, self._policy, self._watching.busy, group, span)
        if found is None:
            return
        learnt, recent = found
        cause = cause_of_group(group)
        with self._store.transaction() as connection:
            state_store.save_learnt(connection, cause, learnt)
        if cause in self.series:
            self.series[cause].renew(learnt, recent)
        else:
            self.series[cause] = self._watched(group, learnt, Progress(at=last))
            self.series[cause].recent = recent

    def unsettled(self) -> list[Watched]:
        """Return the series whose level somebody took for normal since it was learnt: nothing can be said of them yet."""
        return [each for each in self.series.values() if self.is_unsettled(each)]

    def is_unsettled(self, watched: Watched) -> bool:
        """Say whether *watched* is one of `unsettled`."""
        accepted = self._accepted_of(watched.group)
        return accepted is not None and accepted.at > watched.learnt.at

    def settle(self, watched: Watched, last: int) -> None:
        """Go on at the level that was accepted, once its last minute is in."""
        accepted = self._accepted_of(watched.group)
        if accepted is None or accepted.at > last:
            return
        least = self._watching.accepted_beyond
        learnt, recent = levels.settle(self._store.read, self._policy, least, watched, accepted)
        watched.renew(learnt, recent)
        watched.begin_again(accepted.at)
        watched.normal_from = accepted.since
        with self._store.transaction() as connection:
            state_store.save_learnt(connection, watched.cause, learnt)
            state_store.save_progress(connection, {watched.cause: watched.progress}, last)

    def is_accepted(self, pair: Pair) -> bool:
        """Say whether somebody took the difference of two versions for normal."""
        return pair.key in self._accepted

    def versions(self) -> dict[Group, dict[str, int]]:
        """Return the versions of each service that has several, and the minute each was first seen in."""
        found: dict[Group, dict[str, int]] = {}
        for group, first in self._groups.items():
            if group.dimension == "version":
                found.setdefault(whole_of(group), {})[group.value] = first
        return found

    def _load(self, last: int) -> None:
        """Take over what is kept, by whatever process it was written."""
        with self._store.transaction() as connection:
            learnt, self._standing = state_store.load_learnt(connection), state_store.load_progress(connection)
            self._written = state_store.last_minute(connection)
        earliest = last - round(self._watching.catch_up / timedelta(minutes=1))
        self._groups = self._known(last)
        self.series, self.canaries = {}, {}
        for group in self._groups:
            cause = cause_of_group(group)
            if cause in learnt and group.dimension != "version":
                progress = _from(self._standing.get(cause, Progress(at=last)), earliest)
                self.series[cause] = self._watched(group, learnt[cause], progress)
        begun = [each.progress.at for each in self.series.values()]
        self.read_until = min(begun) - longest(self._policy) if begun else last

    def _watched(self, group: Group, learnt: state_store.Learnt, progress: Progress) -> Watched:
        accepted = self._accepted_of(group)
        return Watched(group, self._policy, learnt, progress, normal_from=accepted.since if accepted else 0)

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
        versions = self.versions()
        self.series = {cause: each for cause, each in self.series.items() if each.group in self._groups}
        self.canaries = {whole: each for whole, each in self.canaries.items() if whole in versions}
        broken: list[Exception] = []
        for each in self.series.values():
            seen = versions.get(whole_of(each.group), {})
            try:
                each.go_on(found.get(each.group), start, end, frozenset(sorted(seen.values())[1:]))
                if seen and not each.group.dimension:
                    self._canaries_of(each).go_on(found, seen, (start, end), self._standing)
            except Exception as error:  # noqa: BLE001 - raised when all others had their turn
                broken.append(error)
        return broken

    def _canaries_of(self, whole: Watched) -> Canaries:
        made = Canaries(whole.group, whole.learnt.reference.rows, self._policy, self._watching)
        return self.canaries.setdefault(whole.group, made)

    def _write(self, last: int) -> None:
        pairs = [each.pair for each in self.canaries.values() if each.pair is not None]
        standing = {cause: each.progress for cause, each in self.series.items()}
        standing.update({pair.key: pair.progress for pair in pairs})
        with self._store.transaction() as connection:
            state_store.save_progress(connection, standing, last)
            state_store.forget(connection, last - self._policy.reference.length)
        self._written = last

    def _to_learn(self, last: int, firing: Collection[str]) -> Group | None:
        """Return the group that waits longest: first those of which nothing is known; none while it fires."""
        span = self._policy.reference
        waiting: dict[Group, int] = {}
        for group in self._groups:
            cause = cause_of_group(group)
            known = self.series.get(cause)
            learnt_at = known.learnt.at if known else 0
            due = last - max(learnt_at, self._tried.get(group, 0)) >= span.renew
            enough = last - self._known_from(group) >= span.least
            fires = cause in firing or (known is not None and known.progress.fired_at is not None)
            if due and enough and not fires and group.dimension != "version":
                waiting[group] = learnt_at
        return min(
            waiting,
            key=lambda group: (waiting[group], group.dimension, group.service, group.environment, group.value),
            default=None,
        )

    def _known_from(self, group: Group) -> int:
        """Return the first minute that what is normal is learnt from."""
        accepted = self._accepted_of(group)
        return max(self._groups[group], accepted.since if accepted else 0)

    def _accepted_of(self, group: Group) -> Accepted | None:
        """Return what was taken for normal of *group*, or later of all of its service."""
        causes = (cause_of_group(group), cause_of_group(whole_of(group)))
        found = [self._accepted[cause] for cause in causes if cause in self._accepted]
        return max(found, key=lambda each: each.at, default=None)


def _from(progress: Progress, earliest: int) -> Progress:
    """Return *progress* as it goes on at *earliest* when the minutes before are left out."""
    if progress.at >= earliest:
        return progress
    return Progress(earliest, progress.since, fired_at=progress.fired_at, released_at=progress.released_at)
