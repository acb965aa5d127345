"""A chaos run: clients send, collectors are killed repeatedly, faults happen in between; then all requests are counted.

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

from tests.chaos import faults
from tests.chaos.audit import Totals, added_up, held
from tests.chaos.deployment import Deployment
from tests.chaos.unreliable_network import CONNECTION_FAULTS, NO_FAULTS
from tests.support.postgresql_server import Server

# How long a collector that serves lives on before it is killed, at most. [seconds]
_LIFE_SECONDS = 0.5
_DISK_MEGABYTES = 96


@dataclass(frozen=True, slots=True)
class Plan:
    kills: int
    troubled: float = 0.5
    longest_seconds: float = 1.0
    clients: Sequence[str] = ("agent", "agent", "sdk", "grpc", "raw", "spans", "grpc_spans")


@dataclass
class Outcome:
    sent: Totals
    stored: Totals
    met: Counter[str] = field(default_factory=Counter[str])
    broken: int = 0

    def differences(self) -> list[str]:
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


def run(deployment: Deployment, plan: Plan, report: Callable[[str], None]) -> Outcome:
    rng, met = deployment.rng, Counter[str]()
    for member in deployment.members:
        deployment.start(member)
    for number, kind in enumerate(plan.clients):
        deployment.send(kind, f"{kind}-{number}")
    deployment.wait_for_clients()
    for kill in range(plan.kills):
        deployment.network.faults = rng.choice(CONNECTION_FAULTS)
        if rng.random() < plan.troubled:
            trouble = rng.choice(faults.known(deployment))
            seconds = rng.uniform(0, plan.longest_seconds) * (4 if rng.random() < 1 / 8 else 1)
            report(f"{kill}: {trouble.__name__} for {seconds:.1f} s")
            trouble(deployment, seconds)
            met[trouble.__name__] += 1
        member = rng.choice(deployment.members)
        # One in five dies before it serves.
        if rng.random() < 0.8:
            deployment.wait_for(member)
            time.sleep(rng.uniform(0, _LIFE_SECONDS))
        else:
            time.sleep(rng.uniform(0, 0.1))
        deployment.kill(member)
        met["kill"] += 1
        time.sleep(rng.choice((0.0, 0.0, rng.uniform(0, plan.longest_seconds))))
        deployment.start(member)
    deployment.network.faults = NO_FAULTS
    sent = added_up(deployment.finish())
    deployment.wait_until_processed()
    for member in deployment.members:
        deployment.wait_for(member)
        deployment.end(member)
    met["gave up by itself"] = deployment.given_up
    return Outcome(sent, held(deployment.url), met, deployment.network.broken)


@contextmanager
def on_sqlite(seed: int, kills: int = 0) -> Generator[Deployment]:
    """One collector on a file; if possible on a small file system with space for the data until *kills*."""
    folder = Path(tempfile.mkdtemp(prefix="stagelens-chaos"))
    with ExitStack() as stack:
        disk = _small_disk(folder, _DISK_MEGABYTES + kills, stack)
        url = f"sqlite:///{disk or folder}/stagelens.db"
        deployment = Deployment(folder, url, 1, random.Random(seed), disk=disk)
        stack.callback(deployment.close)
        yield deployment
    # Of what went wrong the logs are left.
    shutil.rmtree(folder)


def _small_disk(folder: Path, megabytes: int, stack: ExitStack) -> Path | None:
    disk = folder / "disk"
    disk.mkdir()
    command = ("mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "stagelens", str(disk))
    try:
        mounted = subprocess.run(command, check=False, capture_output=True).returncode == 0
    except OSError:
        mounted = False
    if not mounted:
        return None
    stack.callback(subprocess.run, ("umount", "--lazy", str(disk)), check=True)
    return disk


@contextmanager
def on_postgresql(seed: int, server: Server) -> Generator[Deployment]:
    folder = Path(tempfile.mkdtemp(prefix="stagelens-chaos"))
    deployment = Deployment(folder, server.new_database(), 2, random.Random(seed), postgresql=server)
    try:
        yield deployment
    finally:
        deployment.close()
    shutil.rmtree(folder)
