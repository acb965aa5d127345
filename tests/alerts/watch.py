"""Processes of `stagelens alerts` over one store, whose leases a test can expire."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import select, update

from stagelens.alerts.objectives.slo_file import LiveSloFile
from stagelens.alerts.reader import AlertsReader, Incident
from stagelens.alerts.schema import EVALUATION_LEASE, outbox
from stagelens.store import Store
from stagelens.store.schema import leases
from tests.alerts.alert_processes import AlertProcesses


class Lease(NamedTuple):
    """Evaluation lease: its holder, its end, and the last evaluation, in Unix seconds; 0 for never."""

    holder: str = ""
    until: float = 0.0
    done_at: float = 0.0


def lease_of(store: Store) -> Lease:
    with store.engine.connect() as connection:
        found = connection.execute(select(leases).where(leases.c.name == EVALUATION_LEASE)).first()
    return Lease() if found is None else Lease(found.holder, found.until, found.done_at or 0.0)


@dataclass
class Watch:
    """Processes of `stagelens alerts` over one store.

    Args:
        store: The store.
        slo_yaml: Their SLO file.
        channels: The channels of the SLO file, in YAML.
        processes: Starts and kills the processes.
    """

    store: Store
    slo_yaml: Path
    channels: str
    processes: AlertProcesses = field(default_factory=AlertProcesses)

    def write_slos(self, *services: str) -> None:
        quiet = [f"quiet-{number}" for number in range(10)]
        slos = "".join(
            f"  - {{name: {name}, service: {name}, objective: 0.99, threshold: 250ms, window: 30d}}\n"
            for name in (*quiet, *services)
        )
        draft = self.slo_yaml.with_suffix(".new")
        draft.write_text(f"slos:\n{slos}channels:\n{self.channels}", encoding="utf-8")
        draft.replace(self.slo_yaml)

    def start(self) -> int:
        return self.processes.watch(
            {
                "STAGELENS_DATABASE": self.store.engine.url.render_as_string(hide_password=False),
                "STAGELENS_SLO_FILE": str(self.slo_yaml),
                "STAGELENS_ALERT_INTERVAL": "1s",
            }
        )

    def kill(self, process: int) -> None:
        self.processes.kill(process)

    @contextmanager
    def suspended(self, process: int) -> Generator[None]:
        os.kill(process, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(process, signal.SIGCONT)

    def forget(self, process: int) -> None:
        mine = f"{process}-%"
        with self.store.transaction() as connection:
            connection.execute(update(leases).where(leases.c.holder.like(mine)).values(until=1.0))
            connection.execute(update(outbox).where(outbox.c.leased_by.like(mine)).values(leased_until=1.0))

    def is_settled(self) -> bool:
        unsettled = select(outbox.c.id).where(outbox.c.state.in_(("waiting", "sending")))
        with self.store.engine.connect() as connection:
            return connection.execute(unsettled).first() is None

    def incidents(self) -> list[Incident]:
        return AlertsReader(self.store, LiveSloFile(None, {})).incidents(limit=10_000)


def process_of(holder: str) -> int:
    return int(holder.partition("-")[0] or 0)


def events(incident: Incident) -> list[str]:
    return [transition.event for transition in incident.transitions]
