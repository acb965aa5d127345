"""Processes that live until they are ended, forked from one that has everything loaded: a new one is there at once."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from stagelens.__main__ import main

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["stagelens.__main__", "stagelens.collector.serve", "stagelens.alerts.serve", __name__])


class ForkedProcesses:
    def __init__(self, log: Path | None = None) -> None:
        self._log = log
        self._alive: dict[int, ForkServerProcess] = {}

    def fork(self, work: Callable[..., object], *arguments: Any) -> int:
        process = _CONTEXT.Process(target=_run, args=(self._log, work, arguments))
        process.start()
        assert process.pid is not None
        self._alive[process.pid] = process
        return process.pid

    def stagelens(self, command: str, **environment: str) -> int:
        return self.fork(_stagelens, command, environment)

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


def _run(log: Path | None, work: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    if log is not None:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    code = work(*arguments)
    os._exit(code if isinstance(code, int) else 0)


def _stagelens(command: str, environment: dict[str, str]) -> int:
    os.environ.update(environment)
    return main([command])


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
