"""The evaluator: runs all alert rules, advances incidents and writes the result, in one process at a time.

The result of one evaluation and its messages are written in one transaction. If the process dies, either all or none of them are
stored, and the next process continues from that state.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar

from sqlalchemy import Connection

from ...analysis.policies import IncidentPolicy, default_burn_rate_policy, default_incident_policy
from ...core.errors import StagelensError
from ...store import Store, lease
from ...store.schema import storable_name
from ...store.series import store_time
from ..delivery.message import Finding
from ..delivery.message_text import headline
from ..formatting import moment_of
from ..incidents.journal import message_for, write_update
from ..incidents.lifecycle import (
    IncidentRecord,
    Step,
    by_cause,
    close_incident,
    delete_old_incidents,
    find_last_incident,
    find_open_incidents,
    next_step,
)
from ..incidents.notification_rules import IncidentUpdate, decide_notifications
from ..incidents.silences import active_silences, delete_old_silences, silence_reason
from ..objectives.slo import Slo
from ..objectives.slo_file import Definitions
from ..schema import EVALUATION_LEASE
from .alert_rules import AbsenceRule, AlertRule, DueCauses, Verdict, cause_of_slo, evaluate_slo, no_verdict
from .backtest import find_missed_incidents, write_missed_incident

log = logging.getLogger(__name__)

T = TypeVar("T")
# Maximum wait for the time of the last evaluation after the clock was set back. [seconds]
_MAX_WAIT_SECONDS = 3600.0
# Share of the lease's validity after which it is renewed, because evaluating many SLOs on a slow store takes long.
_RENEW_SHARE = 1 / 3


class ClockError(StagelensError):
    """The clock shows a time that was evaluated before."""


class Evaluator:
    def __init__(
        self,
        store: Store,
        holder: str,
        *,
        lease_seconds: float,
        incident_policy: IncidentPolicy | None = None,
        rules: Sequence[AlertRule] = (),
        stopwatch: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._holder = holder
        self._lease_seconds = lease_seconds
        self._policy = default_burn_rate_policy()
        self._incident_policy = incident_policy or default_incident_policy()
        self._due_causes = DueCauses()
        self._absences = AbsenceRule(store.read, self._incident_policy.no_data, self._policy, self._due_causes)
        self._rules: tuple[AlertRule, ...] = (self._slos, self._absences, *rules)
        self._stopwatch = stopwatch
        # Time of the first evaluation after a gap or a jump of the clock, and of the last one before it.
        self._resumed_at: datetime | None = None
        self._paused_at: datetime | None = None
        # Last evaluation, which is in the future, and the end of the wait for its time.
        self._waits_for, self._waits_until = 0.0, 0.0
        self._described_at: dict[str, datetime] = {}

    def tick(self, definitions: Definitions, now: datetime) -> list[IncidentUpdate]:
        """Evaluate all alert rules and write the result; return the transitions of incidents, none if another process evaluates."""
        at = now.timestamp()
        with self._store.transaction() as connection:
            before = lease.done_at(connection, EVALUATION_LEASE)
            self._require_progress(before, at)
            if not lease.hold(connection, EVALUATION_LEASE, self._holder, at, self._lease_seconds):
                return []
            # Not the time of the clock, which may jump.
            oldest = store_time(connection, int(at)).proven - self._incident_policy.retention.total_seconds()
            delete_old_incidents(connection, oldest)
            delete_old_silences(connection, oldest)
            open_now = {incident.cause: incident.finding for incident in find_open_incidents(connection)}
        gap_seconds = max(self._incident_policy.catch_up.gap.total_seconds(), self._lease_seconds)
        if before is not None and abs(at - before) > gap_seconds:
            self._resumed_at = self._absences.resumed_at = now
            self._paused_at = min(datetime.fromtimestamp(before, UTC), now)
        broken: list[Exception] = []
        began = self._stopwatch()
        try:
            verdicts = self._evaluate_all(definitions, now, open_now, broken)
            missed = self._missed(definitions, before, now, broken)
            written = self._write(
                verdicts, missed, definitions, now, took_seconds=self._stopwatch() - began, evaluated=open_now
            )
        except BaseException:
            # Nothing was written, so the next tick evaluates all SLOs again.
            self._due_causes.clear()
            raise
        if broken:
            self._due_causes.clear()
            raise broken[0]
        return written

    def _require_progress(self, before: float | None, at: float) -> None:
        """Raise ClockError at a time *at* before the last evaluation, because requests would count with those of the same time.

        The wait ends after an hour: the last evaluation may have been by a clock that was years ahead.
        """
        if before is None or before - at <= lease.MAX_SKEW_SECONDS:
            return
        # While another process evaluates, this one waits.
        if before != self._waits_for:
            self._waits_for, self._waits_until = before, self._stopwatch() + min(before - at, _MAX_WAIT_SECONDS)
        if self._stopwatch() < self._waits_until:
            msg = (
                f"the clock was set back, or that of another process is ahead: the times until {moment_of(before)} were "
                "evaluated before; the evaluation continues then, or within an hour; check the clock"
            )
            raise ClockError(msg)

    def release(self) -> None:
        with self._store.transaction() as connection:
            lease.release(connection, EVALUATION_LEASE, self._holder)

    def _renew_lease(self, connection: Connection, at: float) -> bool:
        return lease.renew(connection, EVALUATION_LEASE, self._holder, at + self._lease_seconds)

    def _slos(
        self, definitions: Definitions, now: datetime, before: Mapping[str, Finding]
    ) -> Iterable[tuple[str, Callable[[], Verdict | None]]]:
        with self._store.read.together() as read:
            revisions = read.revisions()
            for slo in map(self._since_gap, definitions.slos):
                cause = cause_of_slo(slo)
                if self._due_causes.is_due(
                    cause, (slo, cause in before), revisions.get(storable_name(slo.service)), now
                ):
                    yield (
                        cause,
                        partial(
                            evaluate_slo,
                            read,
                            slo,
                            self._policy,
                            now,
                            before=before.get(cause),
                            dashboard_url=definitions.dashboard_url,
                            described_at=self._described_at,
                            paused_at=self._paused_at,
                        ),
                    )
                else:
                    yield cause, no_verdict

    def _since_gap(self, slo: Slo) -> Slo:
        if slo.kind != "freshness" or self._resumed_at is None:
            return slo
        since = self._resumed_at.replace(second=0, microsecond=0)
        return replace(slo, reset=max(slo.reset or since, since))

    def _evaluate_all(
        self, definitions: Definitions, now: datetime, before: Mapping[str, Finding], broken: list[Exception]
    ) -> dict[str, Verdict | None]:
        verdicts: dict[str, Verdict | None] = {}
        began = renewed = self._stopwatch()
        for rule in self._rules:
            for cause, one in rule(definitions, now, before):
                verdicts[cause] = _collect_error(one, broken)
                if self._stopwatch() - renewed > _RENEW_SHARE * self._lease_seconds:
                    renewed = self._stopwatch()
                    with self._store.transaction() as connection:
                        self._renew_lease(connection, now.timestamp() + renewed - began)
        return verdicts

    def _missed(
        self, definitions: Definitions, before: float | None, now: datetime, broken: list[Exception]
    ) -> list[IncidentRecord]:
        if before is None or self._resumed_at != now:
            return []
        reach, url = self._incident_policy.catch_up.reach, definitions.dashboard_url
        since = max(min(datetime.fromtimestamp(before, UTC), now), now - reach)
        missed: list[IncidentRecord] = []
        for slo in definitions.slos:
            one = partial(find_missed_incidents, self._store.read, slo, self._policy, since, now, dashboard_url=url)
            missed += _collect_error(one, broken) or []
        return missed

    def _write(
        self,
        verdicts: Mapping[str, Verdict | None],
        missed: Sequence[IncidentRecord],
        definitions: Definitions,
        now: datetime,
        *,
        took_seconds: float,
        evaluated: Collection[str],
    ) -> list[IncidentUpdate]:
        """Write the result of *verdicts*, unless another process acquired the lease in the meantime.

        If an incident with a cause in *evaluated* is no longer open, a user accepted it in the meantime; its verdict is ignored.
        """
        at = now.timestamp()
        with self._store.transaction() as connection:
            if not self._renew_lease(connection, at + took_seconds):
                return []
            before = stored = find_open_incidents(connection)
            if self._resumed_at == now:
                # The time without an evaluation is unknown: it counts neither as recovery nor as silence.
                early = {"seen_at": at, "quiet_since": None}
                before = [replace(record, **early, notified_at=min(record.notified_at, at)) for record in stored]
            ended = set(evaluated) - set(by_cause(before))
            verdicts = {cause: None if cause in ended else verdict for cause, verdict in verdicts.items()}
            for missed_incident in missed:
                if missed_incident.cause not in by_cause(before):
                    write_missed_incident(connection, missed_incident)
            removed = [close_incident(record, "removed", at) for record in before if record.cause not in verdicts]
            steps = [*self._steps(connection, verdicts, before, at), *removed]
            turns = decide_notifications(
                [*steps, *_unchanged(before, steps)],
                _mute_reasons(connection, [*before, *(step.record for step in steps)], verdicts, now),
                self._incident_policy.fleet,
                at,
            )
            changed = [turn for turn in turns if turn.event or turn.record not in stored]
            for turn in changed:
                write_update(connection, turn, definitions.channel_names, at)
            lease.note_done(connection, EVALUATION_LEASE, at)
        happened = [turn for turn in changed if turn.event]
        for turn in happened:
            _log(turn, at)
        return happened

    def _steps(
        self,
        connection: Connection,
        verdicts: Mapping[str, Verdict | None],
        before: Sequence[IncidentRecord],
        at: float,
    ) -> Iterable[Step]:
        still_open = by_cause(before)
        for verdict in filter(None, verdicts.values()):
            last = still_open.get(verdict.cause)
            if last is None and verdict.finding is not None:
                last = find_last_incident(connection, verdict.cause)
            step = next_step(
                last,
                verdict.finding,
                cause=verdict.cause,
                now=at,
                has_data=verdict.has_data,
                hysteresis=self._policy.hysteresis,
                silent_since=verdict.silent_since,
            )
            if step is not None:
                yield _with_final_budget(step, verdict)


def _log(turn: IncidentUpdate, at: float) -> None:
    note = f" (no notification: {turn.note})" if turn.note and not turn.notifies else ""
    log.warning("alerts: incident %s %s: %s%s", turn.record.id, turn.event, headline(message_for(turn, at)), note)


def _collect_error(one: Callable[[], T], broken: list[Exception]) -> T | None:
    try:
        return one()
    except Exception as error:  # noqa: BLE001 - raised at the end of the tick, after all other causes are evaluated
        broken.append(error)
        return None


def _unchanged(before: Sequence[IncidentRecord], steps: Sequence[Step]) -> list[Step]:
    moved = {step.record.id for step in steps}
    return [Step(record) for record in before if record.id not in moved]


def _mute_reasons(
    connection: Connection, records: Sequence[IncidentRecord], verdicts: Mapping[str, Verdict | None], now: datetime
) -> dict[str, str]:
    silent = active_silences(connection, now)
    excused = {verdict.cause: verdict.excuse for verdict in verdicts.values() if verdict is not None}
    return {record.id: silence_reason(record.finding, silent) or excused.get(record.cause, "") for record in records}


def _with_final_budget(step: Step, verdict: Verdict) -> Step:
    finding, budget = step.record.finding, verdict.budget
    if step.happening != "resolved" or finding.burn is None or budget is None:
        return step
    burn = replace(finding.burn, budget_left=budget.left, bad_left=budget.bad_left)
    return replace(step, record=replace(step.record, finding=replace(finding, burn=burn)))
