"""Attacks without credentials on a dashboard and a collector, and their effect on regular readers and senders.

python -m tests.chaos.outside [--seconds 20]    duration of each attack; fails if a reader or sender is kept out
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlencode

from stagelens.dashboard.web.users import add_user
from tests.chaos.attacks import JSON, export, point
from tests.chaos.audit import held
from tests.support.ports import free_port

PASSWORD = "tr0ub4dor and 3"  # noqa: S105 - of this attack
# Limit for the response time of a page during an attack. [seconds]
MOST_SECONDS = 2.0
_TIMEOUT_SECONDS = 30.0
_HOST = "127.0.0.1"
# Source address of the attacks, so that limits by address do not affect regular clients.
_ATTACKER = "127.0.0.2"
_numbers = itertools.count()


@dataclass
class Outcome:
    """Result of one kind of attack.

    Args:
        name: Name of the attack.
        answers: Responses to the attackers by status; 0 for none. [count]
        pages: Response times of pages for a signed-in reader. [seconds]
        probes: Response times of /livez of dashboard and collector. [seconds]
        refused: Pages, probes and regular exports with another status than 200. [count]
    """

    name: str
    answers: Counter[int] = field(default_factory=Counter[int])
    pages: list[float] = field(default_factory=list[float])
    probes: list[float] = field(default_factory=list[float])
    refused: Counter[str] = field(default_factory=Counter[str])

    def __str__(self) -> str:
        """Return it as a row of docs/design/reliability.md."""
        slowest = [f"{max(each, default=0):.2f} s" for each in (self.pages, self.probes)]
        counts = ", ".join(f"{status or 'none'}: {number:,}" for status, number in sorted(self.answers.items()))
        return f"| {self.name} | {counts} | {' | '.join(slowest)} | {self.refused.total()} |"


class Stagelens:
    """A running `stagelens up` with one user.

    Args:
        folder: Folder for its database, users file and log.
    """

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder}/stagelens.db"
        self.dashboard, self.collector = free_port(), free_port()
        add_user(folder / "users.txt", "ada", PASSWORD)
        settings = {
            "STAGELENS_DATABASE": self.url,
            "STAGELENS_COLLECTOR_PORT": str(self.collector),
            "STAGELENS_COLLECTOR_GRPC_PORT": "0",
            "STAGELENS_DASHBOARD_PORT": str(self.dashboard),
            "STAGELENS_DASHBOARD_USERS": str(folder / "users.txt"),
        }
        with (folder / "up.log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "stagelens", "up"], env=os.environ | settings, stdout=log, stderr=log
            )
        while send_request(self.dashboard, "/readyz")[0] != 200:
            assert self._process.poll() is None, (folder / "up.log").read_text()
            time.sleep(0.05)
        fields = {"name": "ada", "secret": PASSWORD}
        connection = http.client.HTTPConnection(_HOST, self.dashboard, timeout=_TIMEOUT_SECONDS)
        connection.request("POST", "/signin", urlencode(fields), {"Content-Type": "application/x-www-form-urlencoded"})
        self.cookie = (connection.getresponse().getheader("Set-Cookie") or "").partition(";")[0]
        connection.close()

    def end(self) -> None:
        """Shut down gracefully."""
        self._process.terminate()
        assert self._process.wait(60) == 0


Attack = Callable[[Stagelens, random.Random, float], Counter[int]]


def send_request(
    port: int,
    path: str,
    body: bytes | None = None,
    headers: dict[str, str] | None = None,
    source: str = _HOST,
) -> tuple[int, float]:
    """Return the status of the response, 0 for none, and the response time in seconds."""
    started = time.monotonic()
    connection = http.client.HTTPConnection(_HOST, port, timeout=_TIMEOUT_SECONDS, source_address=(source, 0))
    try:
        connection.request("GET" if body is None else "POST", path, body, headers or {})
        response = connection.getresponse()
        response.read()
        return response.status, time.monotonic() - started
    except (OSError, http.client.HTTPException):
        return 0, time.monotonic() - started
    finally:
        connection.close()


def idle_readers(to: Stagelens, rng: random.Random, end: float) -> Counter[int]:
    """Hold idle and half-open connections to the dashboard."""
    return _half_open(to.dashboard, rng, end, 40)


def idle_senders(to: Stagelens, rng: random.Random, end: float) -> Counter[int]:
    """Hold idle and half-open connections to the collector."""
    return _half_open(to.collector, rng, end, 75)


def large_bodies(to: Stagelens, rng: random.Random, end: float) -> Counter[int]:
    """Send bodies of 20 MB to the sign-in page."""
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    return Counter(
        _until(end, lambda: send_request(to.dashboard, "/signin", rng.randbytes(20_000_000), form, _ATTACKER)[0])
    )


def guessers(to: Stagelens, rng: random.Random, end: float) -> Counter[int]:
    """Guess passwords from many addresses."""
    form = {"Content-Type": "application/x-www-form-urlencoded"}

    def guess() -> int:
        body = urlencode({"name": "ada", "secret": str(rng.random())}).encode()
        return send_request(to.dashboard, "/signin", body, form, f"127.0.{rng.randint(1, 250)}.{rng.randint(1, 250)}")[
            0
        ]

    return Counter(_until(end, guess))


def inventors(to: Stagelens, _rng: random.Random, end: float) -> Counter[int]:
    """Send each export with a new service name."""

    def invent() -> int:
        body = export([point({})], f"invented-{next(_numbers)}")
        return send_request(to.collector, "/v1/metrics", body, JSON, _ATTACKER)[0]

    return Counter(_until(end, invent))


# Each attack with its number of concurrent attackers.
ATTACKS: Sequence[tuple[Attack, int]] = (
    (idle_readers, 12),
    (large_bodies, 12),
    (guessers, 60),
    (idle_senders, 12),
    (inventors, 12),
)


def attacked(to: Stagelens, attack: Attack, attackers: int, seconds: float, acknowledged: Counter[str]) -> Outcome:
    """Run *attackers* concurrent attackers for *seconds*, beside a reader, health probes and regular senders."""
    outcome = Outcome(attack.__name__.replace("_", " "))
    end = time.monotonic() + seconds

    def go_on(number: int) -> None:
        outcome.answers.update(attack(to, random.Random(number), end))

    threads = [threading.Thread(target=go_on, args=(number,)) for number in range(attackers)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        status, took = send_request(to.dashboard, "/", headers={"Cookie": to.cookie})
        outcome.pages.append(took)
        outcome.refused["page"] += status != 200
        for port in (to.dashboard, to.collector):
            status, took = send_request(port, "/livez")
            outcome.probes.append(took)
            outcome.refused["probe"] += status != 200
        name = f"honest-{next(_numbers)}" if len(acknowledged) < 50 else "honest"
        status, _ = send_request(to.collector, "/v1/metrics", export([point({}, ("1", "2"))], name), JSON)
        outcome.refused["export"] += status != 200
        acknowledged[name] += 3 if status == 200 else 0
        time.sleep(0.05)
    return outcome


def _until(end: float, attempt: Callable[[], int]) -> list[int]:
    found: list[int] = []
    while time.monotonic() < end:
        found.append(attempt())
    return found


def _half_open(port: int, rng: random.Random, end: float, many: int) -> Counter[int]:
    """Hold *many* connections open; reopen closed ones every two seconds."""
    opened = Counter[int]()
    with ExitStack() as stack:
        while time.monotonic() < end:
            for _ in range(many):
                with suppress(OSError):
                    connection = socket.create_connection((_HOST, port), 5, (_ATTACKER, 0))
                    stack.callback(connection.close)
                    connection.sendall(rng.choice((b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: x\r\nX: ")))
                    opened[0] += 1
            time.sleep(min(2.0, max(0.0, end - time.monotonic())))
            stack.close()
    return opened


def main() -> int:
    """Run every attack and print the results."""
    parser = argparse.ArgumentParser("outside", description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="duration of each attack (default 20)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        to, acknowledged = Stagelens(Path(folder)), Counter[str]()
        print(
            "| attack | responses to it | slowest page | slowest probe | regular requests refused |\n|---|---|---|---|---|"
        )
        outcomes = list[Outcome]()
        for attack, attackers in ATTACKS:
            outcomes.append(attacked(to, attack, attackers, options.seconds, acknowledged))
            print(outcomes[-1], flush=True)
        to.end()
        counted = held(to.url).requests
        lost = {name: number for name, number in acknowledged.items() if counted[name] != number}
        print(
            f"{acknowledged.total():,} requests of {len(acknowledged)} honest services acknowledged, lost: {lost or 'none'}"
        )
        slow = max(max(each.pages) for each in outcomes) > MOST_SECONDS
        return int(bool(lost) or slow or any(each.refused.total() for each in outcomes))


if __name__ == "__main__":
    sys.exit(main())
