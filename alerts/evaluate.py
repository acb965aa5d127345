"""One evaluation: measure every SLO, decide what becomes of its incident, write it down. One process at a time."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from ..collector.store import Store
from . import findings, incidents, lease
from .burn import FAST
from .incidents import Record, Step
from .measure import measure
from .message import headline
from .policy_file import Policy, default_policy
from .slo import Slo
from .slo_file import Definitions

log = logging.getLogger(__name__)

LEASE = "evaluate"
# How long an incident that is over can be looked up: as long as the store keeps the hours it happened in.
KEPT = timedelta(days=395)


class Evaluator:
    """Judges SLOs against the store.

    Args:
        store: Where requests, incidents and the outbox are.
        holder: The name of this process.
        lease_seconds: How long this process keeps the right to evaluate without renewing it. [seconds]
        policy: Tiers, guard and patience.
    """

    def __init__(self, store: Store, holder: str, *, lease_seconds: float, policy: Policy | None = None) -> None:
        self._store = store
        self._holder = holder
        self._lease_seconds = lease_seconds
        self._policy = policy or default_policy()

    def tick(self, definitions: Definitions, now: datetime) -> list[Step]:
        """Evaluate every SLO once.

        Returns:
            The transitions that were written; empty when another process evaluates.

        Raises:
            StoreError: The store cannot be used; what was not written will be found again by the next tick.
            Exception: One SLO could not be evaluated; the others were.
        """
        with self._store.transaction() as connection:
            if not lease.hold(connection, LEASE, self._holder, now.timestamp(), self._lease_seconds):
                return []
            incidents.forget(connection, (now - KEPT).timestamp())
        told: list[Step | None] = []
        broken: list[Exception] = []
        for slo in definitions.slos:
            try:
                told.append(self._evaluate(slo, definitions, now))
            except Exception as error:  # noqa: BLE001 - raised below, when the other SLOs had their turn
                broken.append(error)
        told += self._close_removed(definitions, now)
        if broken:
            raise broken[0]
        return [step for step in told if step is not None and step.transition is not None]

    def release(self) -> None:
        """Let another process evaluate."""
        with self._store.transaction() as connection:
            lease.release(connection, LEASE, self._holder)

    def _evaluate(self, slo: Slo, definitions: Definitions, now: datetime) -> Step | None:
        cause = cause_of(slo)
        with self._store.engine.connect() as connection:
            record = incidents.find(connection, cause)
        going_on = record is not None and record.resolved_at is None
        measured = measure(self._store.read, slo, self._policy, now, already=going_on)
        since = datetime.fromtimestamp(record.finding.since, UTC) if record is not None and going_on else None
        found = findings.describe(self._store.read, measured, now, since=since, dashboard_url=definitions.dashboard_url)
        step = incidents.decide(
            record,
            found,
            cause=cause,
            now=now.timestamp(),
            has_data=measured.counts[FAST].total > 0,
            patience=self._policy.patience,
        )
        if step is not None and step.transition == "resolved":
            step = _settled(step, measured.budget.left, measured.budget.bad_left)
        return self._write(step, record, definitions.channel_names, now)

    def _write(self, step: Step | None, before: Record | None, channels: Sequence[str], now: datetime) -> Step | None:
        """Commit *step*, unless the lease was lost or the incident has moved since it was read."""
        if step is None:
            return None
        with self._store.transaction() as connection:
            at = now.timestamp()
            mine = lease.hold(connection, LEASE, self._holder, at, self._lease_seconds)
            if not mine or incidents.find(connection, step.record.cause) != before:
                return None
            incidents.apply(connection, step, channels, at)
        if step.transition is not None:
            told = incidents.message_of(step.record, step.transition, at)
            log.warning("alerts: incident %s %s: %s", step.record.id, step.transition, headline(told))
        return step

    def _close_removed(self, definitions: Definitions, now: datetime) -> list[Step | None]:
        """End the incidents of SLOs that are not in the file any more: nobody would ever resolve them."""
        causes = {cause_of(slo) for slo in definitions.slos}
        with self._store.engine.connect() as connection:
            orphans = [record for record in incidents.find_open(connection) if record.cause not in causes]
        return [
            self._write(incidents.close(record, "removed", now.timestamp()), record, definitions.channel_names, now)
            for record in orphans
        ]


def cause_of(slo: Slo) -> str:
    """Return the cause an incident of *slo* is opened for."""
    return f"slo:{slo.name}"


def _settled(step: Step, left: float, bad_left: float) -> Step:
    """Put the budget as it is at the end into the last finding, which was made while it burned."""
    finding = replace(step.record.finding, budget_left=left, bad_left=bad_left)
    return Step(replace(step.record, finding=finding), step.transition)
