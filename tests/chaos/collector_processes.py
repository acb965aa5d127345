"""Collectors that live until they are killed, forked from a process that has everything loaded: a new one is there at once.

As a program it reads commands: `start {"NAME": …}` (`stagelens collector` with such an environment) answers with the id of a
process; `kill ID` and `end ID` with how it ended, once it has; `lives ID` with 1 or 0. When its input ends, all of them die.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path

from stagelens import __main__ as command_line

ROOT = Path(__file__).parents[2]


class CollectorProcesses:
    """Starts and ends collectors."""

    def __init__(self, log: Path) -> None:
        self._log = log
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.collector_processes"],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                bufsize=1,
            )

    def start(self, environment: Mapping[str, str]) -> int:
        return self._send_command(f"start {json.dumps(dict(environment))}")

    def kill(self, process: int) -> None:
        self._send_command(f"kill {process}")

    def end(self, process: int) -> int:
        return self._send_command(f"end {process}")

    def lives(self, process: int) -> bool:
        return bool(self._send_command(f"lives {process}"))

    def close(self) -> None:
        assert self._process.stdin
        assert self._process.stdout
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def _send_command(self, command: str) -> int:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(command + "\n")
        response = self._process.stdout.readline()
        assert response, f"collectors cannot be loaded; see {self._log}"
        return int(response)


def main() -> None:
    for part in ("collector.serve", "store.store_factory", "alerts.serve"):
        importlib.import_module(f"stagelens.{part}")
    alive: set[int] = set()
    for command in sys.stdin:
        verb, _, argument = command.partition(" ")
        if verb == "start":
            result = _child(json.loads(argument))
            alive.add(result)
        elif verb == "lives":
            # What has ended stays to be asked about until it is buried.
            result = int(os.waitid(os.P_PID, int(argument), os.WEXITED | os.WNOHANG | os.WNOWAIT) is None)
        else:
            result = _ended(int(argument), signal.SIGKILL if verb == "kill" else signal.SIGTERM)
            alive.discard(int(argument))
        print(result, flush=True)
    for process in alive:
        _ended(process, signal.SIGKILL)


def _child(environment: Mapping[str, str]) -> int:
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        os.environ.update(environment)
        # Answers go to the output of this process, and to nowhere else.
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        code = command_line.main(["collector"])
    except BaseException:  # noqa: BLE001 - it is said, and the process ends
        traceback.print_exc()
    finally:
        os._exit(code)


def _ended(process: int, how: signal.Signals) -> int:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, how)
        # A stopped process hears nothing else.
        os.kill(process, signal.SIGCONT)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


if __name__ == "__main__":
    main()
