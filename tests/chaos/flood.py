"""Floods of attacks by many clients, and their cost for a real collector; regular senders continue meanwhile.

python -m tests.chaos.flood [--seconds 20]    each kind of flood for so long, and the peak of the collector's memory
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.attacks import ATTACKS, JSON, Attack, export, point, send
from tests.chaos.audit import held
from tests.support.ports import free_port

_MEGABYTE = 1024**2
# A kind of flood has so many at it at once.
_SENDERS = 12


@dataclass
class Flooded:
    name: str
    statuses: Counter[int] = field(default_factory=Counter[int])
    without_advice: int = 0
    peak_bytes: int = 0
    slowest_seconds: float = 0.0


class Collector:
    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder}/stagelens.db"
        self.port = free_port()
        settings = {
            "STAGELENS_DATABASE": self.url,
            "STAGELENS_COLLECTOR_PORT": str(self.port),
            "STAGELENS_COLLECTOR_GRPC_PORT": "0",
        }
        with (folder / "collector.log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "stagelens", "collector"], env=os.environ | settings, stdout=log, stderr=log
            )
        while send(self.port, "/healthz").status != 200:
            assert self._process.poll() is None, (folder / "collector.log").read_text()
            time.sleep(0.05)

    def memory(self, of: str) -> int:
        """Return a line of its status in bytes: `VmRSS`, or `VmHWM`, the most that ever was."""
        lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{of}:"))

    def end(self) -> None:
        self._process.terminate()
        assert self._process.wait(60) == 0


def flood(collector: Collector, attack: Attack, seconds: float, seed: int) -> Flooded:
    outcome = Flooded(attack.__name__)
    end = time.monotonic() + seconds

    def go_on(rng: random.Random) -> None:
        while time.monotonic() < end:
            sent = attack(collector.port, rng)
            outcome.statuses[sent.status] += 1
            outcome.without_advice += sent.status in (429, 503) and not sent.advised

    threads = [threading.Thread(target=go_on, args=(random.Random(f"{seed}:{number}"),)) for number in range(_SENDERS)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        outcome.slowest_seconds = max(outcome.slowest_seconds, send(collector.port, "/").seconds)
        time.sleep(0.05)
    outcome.peak_bytes = collector.memory("VmHWM")
    return outcome


@contextmanager
def honest(collector: Collector) -> Generator[Counter[str]]:
    acknowledged: Counter[str] = Counter()
    ended = threading.Event()

    def go_on() -> None:
        while not ended.wait(0.01):
            body = export([point({"http.route": "/predict"}, ("1", "2"))], "honest")
            # Again until it is said to be kept, as agents do.
            while send(collector.port, "/v1/metrics", body, JSON).status != 200:
                ended.wait(0.1)
            acknowledged["honest"] += 3

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield acknowledged
    finally:
        ended.set()
        thread.join()


def main() -> int:
    parser = argparse.ArgumentParser("flood", description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="how long each kind goes on (default 20)")
    parser.add_argument("--only", nargs="+", help="names of floods")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        collector = Collector(Path(folder))
        print(f"idle: {collector.memory('VmRSS') / _MEGABYTE:.0f} MiB")
        with honest(collector) as acknowledged:
            for attack in ATTACKS:
                if options.only and attack.__name__ not in options.only:
                    continue
                outcome = flood(collector, attack, options.seconds, 1)
                print(
                    f"{outcome.name}: peak {outcome.peak_bytes / _MEGABYTE:.0f} MiB, now "
                    f"{collector.memory('VmRSS') / _MEGABYTE:.0f} MiB, slowest answer {outcome.slowest_seconds:.1f} s, "
                    f"{dict(outcome.statuses)}, {outcome.without_advice} without Retry-After",
                    flush=True,
                )
        collector.end()
        counted = held(collector.url).requests["honest"]
        print(f"{acknowledged['honest']} honest requests acknowledged, {counted} counted")
        return int(counted != acknowledged["honest"])


if __name__ == "__main__":
    sys.exit(main())
