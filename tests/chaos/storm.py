"""A run: clients send, collectors are killed again and again, and things go wrong in between; then all is counted.

The seed decides what goes wrong, in which order and for how long. What the machine does meanwhile it does not: the same seed
meets the same troubles, not the same interleaving, which is why a failure names its seed and the folder of its logs.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import troubles
from audit import Totals, added_up, held
from place import Place
from postgresql_server import Server
from weather import CLEAR, WEATHERS

# How long a collector that serves lives on before it is killed, at most. [seconds]
_LIFE_SECONDS = 0.5
_DISK_MEGABYTES = 96


@dataclass(frozen=True, slots=True)
class Plan:
    """How hard a run is.

    Args:
        kills: How often a collector is killed.
        troubled: The share of kills that something else goes before.
        longest_seconds: How long such a thing lasts at most; one in eight lasts four times as long. [seconds]
        clients: Kind and number of who sends.
    """

    kills: int
    troubled: float = 0.5
    longest_seconds: float = 1.0
    clients: Sequence[str] = ("agent", "agent", "sdk", "grpc", "raw", "spans", "grpc_spans")


@dataclass
class Outcome:
    """What came of a run.

    Args:
        sent: What the clients say they sent.
        stored: What the store holds.
        met: What went wrong, and how often.
        broken: Connections that did not end well.
    """

    sent: Totals
    stored: Totals
    met: Counter[str] = field(default_factory=Counter[str])
    broken: int = 0

    def differences(self) -> list[str]:
        """Return where what was sent and what is stored are not the same, to the last request."""
        pairs = (
            ("requests", self.sent.requests, self.stored.requests, {*self.sent.requests, *self.stored.requests}),
            # Which stages its time is in, and which requests are kept, is not always the sender's choice.
            ("microseconds", self.sent.microseconds, self.stored.microseconds, set(self.sent.microseconds)),
            ("traces", self.sent.traces, self.stored.traces, set(self.sent.traces)),
        )
        return [
            f"{what} of {key}: {sent[key]} sent, {stored[key]} stored"
            for what, sent, stored, keys in pairs
            for key in sorted(keys)
            if sent[key] != stored[key]
        ]


def run(place: Place, plan: Plan, told: Callable[[str], None]) -> Outcome:
    """Go through *plan* at *place*, and count.

    Args:
        place: Where.
        plan: How hard.
        told: Hears what happens.
    """
    rng, met = place.rng, Counter[str]()
    for member in place.members:
        place.start(member)
    for number, kind in enumerate(plan.clients):
        place.send(kind, f"{kind}-{number}")
    place.wait_for_clients()
    for kill in range(plan.kills):
        place.network.weather = rng.choice(WEATHERS)
        if rng.random() < plan.troubled:
            trouble = rng.choice(troubles.known(place))
            seconds = rng.uniform(0, plan.longest_seconds) * (4 if rng.random() < 1 / 8 else 1)
            told(f"{kill}: {trouble.__name__} for {seconds:.1f} s")
            trouble(place, seconds)
            met[trouble.__name__] += 1
        member = rng.choice(place.members)
        # One in five dies before it serves.
        if rng.random() < 0.8:
            place.wait_for(member)
            time.sleep(rng.uniform(0, _LIFE_SECONDS))
        else:
            time.sleep(rng.uniform(0, 0.1))
        place.kill(member)
        met["kill"] += 1
        time.sleep(rng.choice((0.0, 0.0, rng.uniform(0, plan.longest_seconds))))
        place.start(member)
    place.network.weather = CLEAR
    sent = added_up(place.finish())
    place.wait_until_folded()
    for member in place.members:
        place.wait_for(member)
        place.end(member)
    met["gave up by itself"] = place.given_up
    return Outcome(sent, held(place.url), met, place.network.broken)


@contextmanager
def on_sqlite(seed: int) -> Generator[Place]:
    """One collector on a file; on a small file system of its own where we may mount one."""
    folder = Path(tempfile.mkdtemp(prefix="stagelens-chaos"))
    with ExitStack() as stack:
        disk = _small_disk(folder, stack)
        url = f"sqlite:///{disk or folder}/stagelens.db"
        place = Place(folder, url, 1, random.Random(seed), disk=disk)
        stack.callback(place.close)
        yield place
    # Of what went wrong the logs are left.
    shutil.rmtree(folder)


def _small_disk(folder: Path, stack: ExitStack) -> Path | None:
    """Mount one in *folder*, until *stack* ends; None where that is not allowed."""
    disk = folder / "disk"
    disk.mkdir()
    command = ("mount", "-t", "tmpfs", "-o", f"size={_DISK_MEGABYTES}m", "stagelens", str(disk))
    try:
        mounted = subprocess.run(command, check=False, capture_output=True).returncode == 0
    except OSError:
        mounted = False
    if not mounted:
        return None
    stack.callback(subprocess.run, ("umount", "--lazy", str(disk)), check=True)
    return disk


@contextmanager
def on_postgresql(seed: int, server: Server) -> Generator[Place]:
    """Two collectors behind one address, on one database."""
    folder = Path(tempfile.mkdtemp(prefix="stagelens-chaos"))
    place = Place(folder, server.new_database(), 2, random.Random(seed), postgresql=server)
    try:
        yield place
    finally:
        place.close()
    shutil.rmtree(folder)
