"""What happened while nobody evaluated: trouble that began and ended meanwhile is written down, and told to nobody.

What still goes on is found by the next evaluation, which judges now; nobody is paged for the past.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection

from ...store import Reader
from .. import formatting
from ..incidents import journal
from ..incidents.notification_rules import Turn
from ..incidents.record import Record
from ..objectives.slo import Slo
from ..policy_file import Policy
from . import burn_rate
from .alert_rules import cause_of
from .backtest import replay
from .history import load
from .links import link, where
from .measurement import tiers_of


def missed(
    read: Reader, slo: Slo, policy: Policy, since: datetime, now: datetime, *, dashboard_url: str
) -> list[Record]:
    """Return the incidents of *slo* that began after *since* and are over *now*, as they would have been kept."""
    longest = max(burn_rate.windows(policy, tiers_of(slo, policy)), default=timedelta(0))
    history = load(read, slo, since - longest, now)
    over = [record for record in replay(history, slo, policy, history.edge_of(since)) if not record.is_open]
    return [_kept(record, slo, since, now, dashboard_url) for record in over]


def write(connection: Connection, record: Record) -> None:
    """Write the whole life of *record*, of which nobody was told."""
    ended = record.resolved_at or record.seen_at
    begun = replace(record, resolved_at=None, ending="", sequence=1)
    journal.write(connection, Turn(begun, "opened", note=record.muted), (), record.opened_at)
    journal.write(connection, Turn(replace(record, sequence=2), "resolved", note=record.muted), (), ended)


def _kept(record: Record, slo: Slo, since: datetime, now: datetime, dashboard_url: str) -> Record:
    began = datetime.fromtimestamp(record.finding.since, UTC)
    ended = datetime.fromtimestamp(record.resolved_at or record.seen_at, UTC)
    finding = replace(
        record.finding,
        promise=slo.in_words(),
        description=slo.description,
        runbook=slo.runbook,
        link=link(dashboard_url, slo, began, ended),
        where=where(slo),
    )
    why = f"found afterwards: nothing was evaluated from {formatting.moment(since)} to {formatting.moment(now)}"
    return replace(record, cause=cause_of(slo), finding=finding, muted=why, story=record.id)
