"""The alerts as a running part: evaluate every few seconds, deliver all the time, stop cleanly."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

from sqlalchemy.exc import SQLAlchemyError

from ..collector.store import Store
from ..core.errors import StoreError
from . import outbox
from .channel import Channel
from .channels import ChannelEntry
from .config import AlertsConfig
from .evaluate import Evaluator
from .lease import new_holder
from .reader import AlertsReader
from .slo_file import Definitions, LiveFile
from .worker import LEASE_SECONDS, Worker

log = logging.getLogger(__name__)

# Three missed evaluations, and another process takes over.
_MISSED_TICKS = 3
_MIN_LEASE_SECONDS = 30.0


class Alerts:
    """Watches the SLOs of one file and tells its channels.

    Args:
        config: The settings.
        store: The database; also holds incidents and the outbox.
        clock: Says the time.
        delivery_lease_seconds: How long a message is kept from other processes while it is being sent. [seconds]
    """

    def __init__(
        self,
        config: AlertsConfig,
        store: Store,
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        delivery_lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        self.file = LiveFile(config.slo_file, config.env)
        self.reader = AlertsReader(store, self.file)
        self._config = config
        self._store = store
        self._clock = clock
        self._delivery_lease_seconds = delivery_lease_seconds
        self._holder = new_holder()
        lease_seconds = max(_MISSED_TICKS * config.interval.total_seconds(), _MIN_LEASE_SECONDS)
        self._evaluator = Evaluator(store, self._holder, lease_seconds=lease_seconds)
        self._workers: dict[str, tuple[Channel, Worker]] = {}
        self._employed: Definitions | None = None
        self._stopping = threading.Event()
        self._trouble = ""
        self._thread = threading.Thread(target=self._run, name="stagelens-alerts", daemon=True)

    def start(self) -> None:
        """Start to evaluate and to deliver; without an SLO file, say so and do nothing."""
        if self.file.path is None:
            log.info("alerts: no SLO file, so no SLO is watched; write slo.yaml or set STAGELENS_SLO_FILE")
        self._thread.start()

    def stop(self) -> None:
        """Finish what is being evaluated and sent, then stop; what is still in the outbox is sent by the next start."""
        self._stopping.set()
        self._thread.join()
        for _, worker in self._workers.values():
            worker.stop()
        self._workers.clear()
        if self.file.path is not None:
            self._guarded(self._evaluator.release)

    def tick(self) -> None:
        """Read the file if it changed, evaluate once, and wake the workers if there is something to send.

        Raises:
            StoreError: The store cannot be used.
        """
        now = self._clock()
        self.file.refresh(now)
        definitions = self.file.current
        if definitions is None:
            return
        if definitions is not self._employed:
            self._employ(definitions)
            self._employed = definitions
        if self._evaluator.tick(self._linked(definitions), now):
            for _, worker in self._workers.values():
                worker.wake()

    def _linked(self, definitions: Definitions) -> Definitions:
        return replace(definitions, dashboard_url=definitions.dashboard_url or self._config.dashboard_url)

    def _employ(self, definitions: Definitions) -> None:
        """Have one worker for each channel of the file: keep those that did not change, stop and start the others."""
        wanted = {entry.name: entry for entry in definitions.channels}
        for name, (channel, worker) in list(self._workers.items()):
            if name not in wanted or wanted[name].channel != channel:
                worker.stop()
                del self._workers[name]
        for entry in definitions.channels:
            self._employ_one(entry)
        with self._store.transaction() as connection:
            outbox.abandon(connection, definitions.channel_names, self._clock().timestamp())

    def _employ_one(self, entry: ChannelEntry) -> None:
        if entry.channel is None:
            log.error("alerts: channel %s waits: set %s in the environment and restart", entry.name, entry.lacking)
        elif entry.name not in self._workers:
            worker = Worker(self._store, entry.channel, self._holder, lease_seconds=self._delivery_lease_seconds)
            self._workers[entry.name] = (entry.channel, worker)
            worker.start()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._guarded(self.tick)
            self._stopping.wait(self._config.interval.total_seconds())

    def _guarded(self, work: Callable[[], object]) -> None:
        """Do *work*; trouble is logged once, and again when it changes or is over."""
        try:
            work()
        except (StoreError, SQLAlchemyError) as error:
            self._say(f"alerts: the store cannot be used: {error}")
        except Exception as error:
            if self._say(f"alerts: the evaluation failed in a way nobody thought of: {error!r}"):
                log.exception("alerts: where it failed")
        else:
            self._say("")

    def _say(self, trouble: str) -> bool:
        """Log *trouble* if it is news, and say whether it was."""
        if trouble == self._trouble:
            return False
        if trouble:
            log.error("%s", trouble)
        else:
            log.info("alerts: the trouble is over, evaluating again")
        self._trouble = trouble
        return True
