"""Collectors that live until they are killed, forked from a process that has everything loaded: a new one is there at once."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Mapping
from multiprocessing.context import ForkServerProcess
from pathlib import Path

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["stagelens.__main__", "stagelens.collector.serve", "stagelens.alerts.serve"])


class CollectorProcesses:
    def __init__(self, log: Path) -> None:
        self._log = log
        self._alive: dict[int, ForkServerProcess] = {}

    def start(self, environment: Mapping[str, str]) -> int:
        process = _CONTEXT.Process(target=_collect, args=(dict(environment), self._log))
        process.start()
        assert process.pid is not None
        self._alive[process.pid] = process
        return process.pid

    def kill(self, process: int) -> None:
        self._end(process, signal.SIGKILL)

    def end(self, process: int) -> int | None:
        return self._end(process, signal.SIGTERM)

    def lives(self, process: int) -> bool:
        return self._alive[process].is_alive()

    def close(self) -> None:
        for process in list(self._alive):
            self.kill(process)

    def _end(self, process: int, how: signal.Signals) -> int | None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, how)
            # A stopped process hears nothing else.
            os.kill(process, signal.SIGCONT)
        ended = self._alive.pop(process)
        ended.join()
        return ended.exitcode


def _collect(environment: dict[str, str], log: Path) -> None:
    from stagelens.__main__ import main  # noqa: PLC0415 - preloaded

    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ.update(environment)
    os._exit(main(["collector"]) or 0)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
