"""Print the garbage collections of generation 1 and 2 in a process that serves requests at a steady pace.

python -m costs.paced PEER SINK REQUESTS RATE
"""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import time
from pathlib import Path

from .peers import OURS, Peer, set_up

BENCHMARKS = Path(__file__).parent.parent
# What every server has loaded, and with it `ssl`.
_PRELOADED = (asyncio,)
# Our thread aggregates every two seconds.
_TAIL_SECONDS = 2.5


def older_collections(peer: str, sink: str, requests: int, rate: int) -> int:
    command = [sys.executable, "-m", "costs.paced", peer, sink, str(requests), str(rate)]
    return int(subprocess.run(command, cwd=BENCHMARKS, check=True, stdout=subprocess.PIPE, text=True).stdout)


def _serve(peer: Peer, requests: int, rate: int) -> None:
    due = time.perf_counter()
    for _ in range(requests):
        time.sleep(max(0.0, due - time.perf_counter()))
        peer.serve()
        # Never in a hurry: a backlog would be a tight loop.
        due = max(due + 1 / rate, time.perf_counter())
    time.sleep(_TAIL_SECONDS)


def main(name: str, sink: str, requests: int, rate: int) -> None:
    output = sys.stdout
    # Whatever a library prints is no answer.
    sys.stdout = sys.stderr
    if name == OURS:
        import stagelens  # noqa: PLC0415

        stagelens.instrument()
    peer = set_up(name, sink)
    assert peer is not None  # noqa: S101 - the gate has set it up before
    _serve(peer, rate, rate)
    collections = [0]

    def count(phase: str, info: dict[str, int]) -> None:
        collections[0] += phase == "start" and info["generation"] > 0

    gc.callbacks.append(count)
    _serve(peer, requests, rate)
    print(collections[0], file=output, flush=True)
    # Exporters would wait for a sink that has gone by then.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
