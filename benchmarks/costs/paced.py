"""A process that serves requests at a steady pace, a real model before each, and says what that took of it.

    python -m costs.paced PEER SINK MODEL

Commands come as lines of JSON on standard input, answers go as such to standard output; see `Process`.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .peers import OURS, Peer, set_up

BENCHMARKS = Path(__file__).parent.parent
# What every server has loaded, and with it `ssl`: neither is anybody's footprint.
_PRELOADED = (asyncio,)
# Our thread folds every two seconds: what a turn leaves behind belongs to it.
TAIL_SECONDS = 2.5


@dataclass(frozen=True, slots=True)
class Served:
    """What serving took.

    Args:
        requests: How many.
        thread_ns: CPU time of the requests' thread within them; the model and the pauses are not counted. [nanoseconds]
        background_ns: CPU time of all other threads, and of delivering what is left. [nanoseconds]
    """

    requests: int
    thread_ns: int
    background_ns: int


@dataclass(frozen=True, slots=True)
class State:
    """How a process stands.

    Args:
        resident_bytes: Its memory in use (Rss); what it shares counts in full, whoever else runs.
        older_collections: Garbage collections of generation 1 and 2 so far.
    """

    resident_bytes: int
    older_collections: int


class Process:
    """Such a process, as seen from the one that started it.

    Args:
        peer: What records; a key of `peers.PEERS`.
        sink: The address of the sink.
        model: What runs in between; a key of `models.MODELS`.
        env: Environment variables to add.
    """

    def __init__(self, peer: str, sink: str, model: str, env: Mapping[str, str]) -> None:
        self.peer = peer
        self._process = subprocess.Popen(
            [sys.executable, "-m", "costs.paced", peer, sink, model],
            cwd=BENCHMARKS,
            env={**os.environ, **env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.installed: bool = self._read_response()

    def serve(self, rate: float, seconds: float) -> Served:
        """Serve *rate* requests a second for *seconds*, and see off what is left of them."""
        return Served(**self._ask("serve", rate=rate, seconds=seconds))

    def idle_ns(self, seconds: float) -> int:
        """Do nothing for *seconds*, and return the nanoseconds of CPU time that took."""
        return self._ask("idle", seconds=seconds)

    def state(self) -> State:
        """Return how it stands."""
        return State(**self._ask("state"))

    def stop(self) -> None:
        """End it, without exit handlers."""
        self._process.kill()
        self._process.wait()

    def _ask(self, command: str, **arguments: float) -> Any:
        assert self._process.stdin is not None  # noqa: S101 - it was asked for
        self._process.stdin.write(json.dumps({"command": command, **arguments}) + "\n")
        self._process.stdin.flush()
        return self._read_response()

    def _read_response(self) -> Any:
        assert self._process.stdout is not None  # noqa: S101 - it was asked for
        line = self._process.stdout.readline()
        if not line:
            msg = f"the process of {self.peer} has ended"
            raise RuntimeError(msg)
        return json.loads(line)


class Worker:
    """The inside of the process: `serve`, `idle` and `state`."""

    def __init__(self, name: str, peer: Peer, model: str) -> None:
        from .models import MODELS  # noqa: PLC0415 - what records is there before the model, as `stagelens run` has it

        self._exports_by_the_clock = name == OURS
        self._peer = peer
        self._model = MODELS[model]()
        self._older_collections = 0
        gc.callbacks.append(self._collected)

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start" and info["generation"] > 0:
            self._older_collections += 1

    def serve(self, rate: float, seconds: float) -> dict[str, Any]:
        """See `Process.serve`."""
        served, in_requests = 0, 0
        others_before = time.process_time_ns() - time.thread_time_ns()
        started = due = time.perf_counter()
        while due < started + seconds - TAIL_SECONDS:
            time.sleep(max(0.0, due - time.perf_counter()))
            self._model()
            before = time.thread_time_ns()
            self._peer.serve()
            in_requests += time.thread_time_ns() - before
            served += 1
            # Never in a hurry: a backlog would be a tight loop.
            due = max(due + 1 / rate, time.perf_counter())
        before = time.thread_time_ns()
        if not self._exports_by_the_clock:
            # Some deliver on the thread that asks for it, which no request did.
            self._peer.settle()
        settling = time.thread_time_ns() - before
        time.sleep(max(0.0, started + seconds - time.perf_counter()))
        others = time.process_time_ns() - time.thread_time_ns() - others_before
        return asdict(Served(served, in_requests, others + settling))

    def idle(self, seconds: float) -> int:
        """See `Process.idle_ns`."""
        before = time.process_time_ns()
        time.sleep(seconds)
        return time.process_time_ns() - before

    def state(self) -> dict[str, Any]:
        """See `Process.state`."""
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
        kilobytes = next(int(line.split()[1]) for line in lines if line.startswith("Rss:"))
        return asdict(State(kilobytes * 1024, self._older_collections))


def main(name: str, sink: str, model: str) -> None:
    """Serve until standard input ends."""
    output = sys.stdout
    # Whatever a library prints is no answer.
    sys.stdout = sys.stderr
    if name == OURS:
        import stagelens  # noqa: PLC0415

        stagelens.instrument()
    peer = set_up(name, sink)
    print(json.dumps(peer is not None), file=output, flush=True)
    if peer is not None:
        worker = Worker(name, peer, model)
        for line in sys.stdin:
            arguments = json.loads(line)
            print(json.dumps(getattr(worker, arguments.pop("command"))(**arguments)), file=output, flush=True)
    # Exporters would wait for a sink that has gone by then.
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
