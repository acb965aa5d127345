"""One target, input after input that is nearly right: how fast, and whether anything is left behind.

    python -m tests.fuzz.steady TARGET INPUTS SEED

A program of its own, because it bounds the memory of its process.
"""

from __future__ import annotations

import json
import logging
import random
import resource
import signal
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType

from tests.fuzz.targets import TARGETS

# An input of a few kilobytes takes a millisecond. [seconds of CPU]
MOST_SECONDS = 5
# What all of the process may take: an input that asks for more fails alone. [bytes]
MOST_BYTES = 2 * 1024**3
_PAGE_BYTES = resource.getpagesize()


@dataclass(frozen=True, slots=True)
class Outcome:
    inputs: int
    seconds: float
    slowest_seconds: float
    rss_bytes: tuple[int, int]

    @property
    def left_bytes(self) -> int:
        return self.rss_bytes[1] - self.rss_bytes[0]


def run(name: str, inputs: int, seed: int) -> Outcome:
    target = TARGETS[name]
    signal.signal(signal.SIGPROF, _too_slow)
    warm, slowest = 0, 0.0
    started = time.perf_counter()
    for number in range(inputs):
        data = target.draw(random.Random(f"{seed}:{number}"))
        input_start = time.perf_counter()
        signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
        try:
            target.check(data)
        except BaseException as error:
            error.add_note(f"target {name}, seed {seed}, input {number}: {data!r}")
            raise
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        slowest = max(slowest, time.perf_counter() - input_start)
        if number == inputs // 10:
            warm = _rss_bytes()
    return Outcome(inputs, time.perf_counter() - started, slowest, (warm, _rss_bytes()))


def _too_slow(_number: int, _frame: FrameType | None) -> None:
    msg = f"an input takes longer than {MOST_SECONDS} s of CPU time"
    raise TimeoutError(msg)


def _rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES


def main(name: str, inputs: str, seed: str) -> None:
    logging.disable()  # damaged parcels are logged, and there are many
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))
    print(json.dumps(asdict(run(name, int(inputs), int(seed)))))


if __name__ == "__main__":
    main(*sys.argv[1:])
