"""Whether the alerts can do their work, for whatever watches over them. It says nothing of what they found.

GET /livez    200 while everything that should runs: only a restart helps once it does not
GET /readyz   200 while the database answers and the last evaluation was whole, 503 with the reason while not

Who stands by is ready: it takes over as soon as the one that evaluates is gone. Reasons go to anybody who asks, so they name no
address and no statement; the log does.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable

from sqlalchemy.exc import SQLAlchemyError

from ..store import Store
from . import lease
from .evaluation.evaluator import LEASE

log = logging.getLogger(__name__)

# Says whether all is well, and more in words.
Probe = Callable[[], tuple[bool, str]]


class Probes:
    """Answers what is asked about one process of the alerts.

    Args:
        store: The database.
        holder: The name of this process, for leases.
        threads: Returns the threads that have to live.
        trouble: Says why the last evaluation was not whole; "" where it was.
        clock: Says the time. [Unix seconds]

    Attributes:
        by_path: What answers, by path.
    """

    def __init__(
        self,
        store: Store,
        holder: str,
        threads: Callable[[], Iterable[threading.Thread]],
        trouble: Callable[[], str],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._holder = holder
        self._threads = threads
        self._trouble = trouble
        self._clock = clock
        self.by_path: dict[str, Probe] = {"/livez": self._livez, "/readyz": self._readyz}

    def _livez(self) -> tuple[bool, str]:
        ended = [each.name for each in self._threads() if each.ident is not None and not each.is_alive()]
        if ended:
            return False, f"ended, and should run: {', '.join(ended)}; restart the alerts, their log says more"
        return True, "ok"

    def _readyz(self) -> tuple[bool, str]:
        lives, text = self._livez()
        if not lives:
            return False, text
        if trouble := self._trouble():
            return False, f"{trouble}; the log of the alerts says more"
        try:
            with self._store.engine.connect() as connection:
                holder = lease.holder_of(connection, LEASE, self._clock())
        except SQLAlchemyError as error:
            log.warning("alerts: not ready, the store cannot be read: %s", error)
            return False, "the store cannot be read; the log of the alerts says more"
        return True, "ok" if holder in (None, self._holder) else "ok; standing by, another process evaluates"
