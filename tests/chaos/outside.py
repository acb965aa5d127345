"""Attacks on a dashboard, a collector and an MCP server, and their effect on regular readers and senders.

python -m tests.chaos.outside [--seconds 20]    duration of each attack; fails if a reader or sender is kept out

All attackers are without credentials, except for the hostile queries: these are of a reader.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import multiprocessing
import os
import random
import resource
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.parse import urlencode

from stagelens.dashboard.web.users import add_user
from tests.chaos.attacks import HOST, JSON, export, point, send
from tests.chaos.audit import held
from tests.support.ports import free_port

PASSWORD = "tr0ub4dor and 3"  # noqa: S105 - of this attack
_TOKEN = "0123456789abcdef" * 2
# Limit for the response time of a page during an attack. [seconds]
MOST_SECONDS = 1.5
# Of attacks that are not within it yet: their work takes the interpreter lock of `stagelens up`, which pages need too.
SLOWER_SECONDS = {"hostile queries": 3.0, "inventors": 8.0}
# Limit for what hostile queries add to the memory of `stagelens up`. [bytes]
MOST_BYTES = 50_000_000
_TIMEOUT_SECONDS = 30.0
# Source addresses of the attacks, so that limits by address do not affect regular clients.
_ATTACKERS = tuple(f"127.0.0.{number}" for number in range(2, 7))
_ATTACKER = _ATTACKERS[0]
# Time after which attackers replace the connections that they have lost.
_REOPENED_SECONDS = 2.0
# Descriptors of the MCP server: the soft limit of most systems. [count]
_DESCRIPTORS = 1024
_ROOT = Path(__file__).parents[2]
_FORK = multiprocessing.get_context("fork")
_numbers = itertools.count()


@dataclass
class Outcome:
    name: str
    answers: Counter[int] = field(default_factory=Counter[int])
    pages: list[float] = field(default_factory=list[float])
    probes: list[float] = field(default_factory=list[float])
    refused: Counter[str] = field(default_factory=Counter[str])
    grown: int = 0

    def __str__(self) -> str:
        slowest = [f"{max(each, default=0):.2f} s" for each in (self.pages, self.probes)]
        counts = ", ".join(f"{status or 'none'}: {number:,}" for status, number in sorted(self.answers.items()))
        return (
            f"| {self.name} | {counts} | {' | '.join(slowest)} | {self.refused.total()} | {self.grown / 1e6:+.0f} MB |"
        )


class Stagelens:
    """A running `stagelens up` with the data of some services and one user, and `stagelens mcp --http` beside it."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.database = folder, folder / "fleet.db"
        self.url = f"sqlite:///{self.database}"
        self.dashboard, self.collector, self.mcp = free_port(), free_port(), free_port()
        fleet = [str(_ROOT / "benchmarks/fleet.py"), str(folder), "--services", "12", "--days", "3"]
        subprocess.run([sys.executable, *fleet, "--fine-days", "1", "--present"], check=True, stdout=subprocess.DEVNULL)
        add_user(folder / "users.txt", "ada", PASSWORD)
        self._settings = os.environ | {
            "STAGELENS_DATABASE": self.url,
            "STAGELENS_COLLECTOR_PORT": str(self.collector),
            "STAGELENS_COLLECTOR_GRPC_PORT": "0",
            "STAGELENS_DASHBOARD_PORT": str(self.dashboard),
            "STAGELENS_DASHBOARD_USERS": str(folder / "users.txt"),
            "STAGELENS_DASHBOARD_TOKEN": _TOKEN,
        }
        self.start()
        mcp = ("mcp", "--http", f"{HOST}:{self.mcp}", "--url", f"http://{HOST}:{self.dashboard}")
        self._mcp = self._run(
            *mcp, before=partial(resource.setrlimit, resource.RLIMIT_NOFILE, (_DESCRIPTORS, _DESCRIPTORS))
        )
        self._wait(self._mcp, lambda: self.ask_mcp() == 200)
        fields = {"name": "ada", "secret": PASSWORD}
        connection = http.client.HTTPConnection(HOST, self.dashboard, timeout=_TIMEOUT_SECONDS)
        connection.request("POST", "/signin", urlencode(fields), {"Content-Type": "application/x-www-form-urlencoded"})
        with connection.getresponse() as response:
            self.cookie = (response.getheader("Set-Cookie") or "").partition(";")[0]
            response.read()
        connection.close()

    def start(self) -> None:
        self._up = self._run("up")
        self._wait(self._up, lambda: send(self.dashboard, "/readyz").status == 200)

    def end(self) -> None:
        for each in (self._mcp, self._up):
            each.terminate()
            assert each.wait(60) == 0

    def restart(self) -> None:
        self._up.kill()
        self._up.wait()
        self.start()

    def resident_bytes(self) -> int:
        pages = Path(f"/proc/{self._up.pid}/statm").read_text().split()[1]
        return int(pages) * resource.getpagesize()

    def ask_mcp(self) -> int:
        call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "services", "arguments": {}}}
        headers = JSON | {"Accept": "application/json, text/event-stream", "Authorization": f"Bearer {_TOKEN}"}
        return send(self.mcp, "/mcp", json.dumps(call).encode(), headers).status

    def _run(self, *words: str, before: Callable[[], None] | None = None) -> subprocess.Popen[bytes]:
        with (self._folder / f"{words[0]}.log").open("ab") as log:
            command = [sys.executable, "-m", "stagelens", *words]
            return subprocess.Popen(command, env=self._settings, stdout=log, stderr=log, preexec_fn=before)  # noqa: PLW1509 - before any thread

    def _wait(self, process: subprocess.Popen[bytes], until: Callable[[], bool]) -> None:
        while not until():
            assert process.poll() is None, "\n".join(each.read_text() for each in self._folder.glob("*.log"))
            time.sleep(0.05)


Attack = Callable[[Stagelens, random.Random, float], Counter[int]]


def large_bodies(to: Stagelens, rng: random.Random, end: float) -> Counter[int]:
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    return Counter(
        _until(end, lambda: send(to.dashboard, "/signin", rng.randbytes(20_000_000), form, _ATTACKER).status)
    )


def guessers(to: Stagelens, rng: random.Random, end: float) -> Counter[int]:
    form = {"Content-Type": "application/x-www-form-urlencoded"}

    def guess() -> int:
        body = urlencode({"name": "ada", "secret": str(rng.random())}).encode()
        return send(to.dashboard, "/signin", body, form, f"127.0.{rng.randint(1, 250)}.{rng.randint(1, 250)}").status

    return Counter(_until(end, guess))


def inventors(to: Stagelens, rng: random.Random, end: float) -> Counter[int]:
    def invent() -> int:
        body = export([point({})], f"invented-{next(_numbers)}")
        return send(to.collector, "/v1/metrics", body, JSON, rng.choice(_ATTACKERS[:2])).status

    return Counter(_until(end, invent))


def hostile_queries(to: Stagelens, rng: random.Random, end: float) -> Counter[int]:
    large = r"\pL{0,90}\w{0,90}x0"
    queries = (
        "{" + ",".join(f'a{number}=~"{large}{number}"' for number in range(150)) + "}",
        '{__name__=~"((a{0,50}){0,50}){0,50}"}',
        f'{{__name__=~"{"|".join(f"{large}{number}" for number in range(100))}"}}',
        "+".join(['{__name__=~".+"}'] * 300),
        'topk(1000000, {__name__=~".+"})',
        "(" * 900 + "1" + ")" * 900,
    )

    def ask() -> int:
        now = int(time.time())
        span = {"query": rng.choice(queries), "start": str(now - 86_400 * 3), "end": str(now), "step": "10"}
        path, parameters = rng.choice((("query_range", span), ("query", span), ("series", {"match[]": span["query"]})))
        address = f"/api/v1/{path}?{urlencode(parameters)}"
        return send(to.dashboard, address, headers={"Cookie": to.cookie}, source=_ATTACKER).status

    return Counter(_until(end, ask))


# Each attack with its number of concurrent attackers.
ATTACKS: Mapping[str, tuple[Attack, int]] = {
    "idle readers": (lambda to, rng, end: _half_open(to.dashboard, rng, end, 40), 12),
    "large bodies": (large_bodies, 12),
    "guessers": (guessers, 60),
    "idle senders": (lambda to, rng, end: _half_open(to.collector, rng, end, 75), 12),
    "unfinished forms": (lambda to, rng, end: _unfinished(to.dashboard, "/signin", rng, end, 40), 12),
    "unfinished exports": (lambda to, rng, end: _unfinished(to.collector, "/v1/metrics", rng, end, 80), 12),
    "unfinished calls": (lambda to, rng, end: _unfinished(to.mcp, "/mcp", rng, end, 100), 12),
    "hostile queries": (hostile_queries, 8),
    # The last one, because pages about more services take longer.
    "inventors": (inventors, 12),
}


def attacked(to: Stagelens, name: str, seconds: float, acknowledged: Counter[str]) -> Outcome:
    outcome, (attack, attackers) = Outcome(name), ATTACKS[name]
    before, end = to.resident_bytes(), time.monotonic() + seconds

    def go_on() -> None:
        with ThreadPoolExecutor(attackers) as pool:
            answers.put(
                sum(pool.map(lambda number: attack(to, random.Random(number), end), range(attackers)), Counter())
            )

    # A process of its own, whose interpreter lock does not delay the reader.
    answers = _FORK.SimpleQueue()
    attacker = _FORK.Process(target=go_on)
    attacker.start()
    while attacker.is_alive() and answers.empty():
        page = send(to.dashboard, "/", headers={"Cookie": to.cookie})
        outcome.pages.append(page.seconds)
        outcome.refused["page"] += page.status != 200
        for port in (to.dashboard, to.collector):
            probe = send(port, "/livez")
            outcome.probes.append(probe.seconds)
            outcome.refused["probe"] += probe.status != 200
        outcome.refused["MCP call"] += to.ask_mcp() != 200
        # The first one is a newcomer during each attack; a service that is known must stay so.
        for service in (f"honest-{name}", "honest"):
            status = send(to.collector, "/v1/metrics", export([point({}, ("1", "2"))], service), JSON).status
            outcome.refused["export"] += status != 200
            acknowledged[service] += 3 if status == 200 else 0
        time.sleep(0.05)
    outcome.answers = answers.get()
    attacker.join()
    outcome.grown = to.resident_bytes() - before
    return outcome


def removed_database(to: Stagelens) -> list[str]:
    for each in to.database.parent.glob(f"{to.database.name}*"):
        each.unlink()
    body = export([point({})], "honest")
    found = [
        f"export {number}: acknowledged"
        for number in range(6)
        if send(to.collector, "/v1/metrics", body, JSON).status == 200
    ]
    found += [
        f"/readyz of port {port}: 200" for port in (to.collector, to.dashboard) if send(port, "/readyz").status == 200
    ]
    to.restart()
    return found + ["export after the restart: refused"] * (send(to.collector, "/v1/metrics", body, JSON).status != 200)


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
                    connection = socket.create_connection((HOST, port), 5, (_ATTACKER, 0))
                    stack.callback(connection.close)
                    connection.sendall(rng.choice((b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: x\r\nX: ")))
                    opened[0] += 1
            time.sleep(min(_REOPENED_SECONDS, max(0.0, end - time.monotonic())))
            stack.close()
    return opened


def _unfinished(port: int, path: str, rng: random.Random, end: float, many: int) -> Counter[int]:
    """Hold *many* requests with one byte of their body, from five addresses; replace each that gets a response."""
    head = f"POST {path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\nContent-Length: 900000\r\n\r\n{{"
    opened = Counter[int]()
    with ExitStack() as stack, selectors.DefaultSelector() as held_open:
        while time.monotonic() < end:
            for _ in range(many - len(held_open.get_map())):
                with suppress(OSError):
                    connection = socket.create_connection((HOST, port), 5, (rng.choice(_ATTACKERS), 0))
                    stack.callback(connection.close)
                    connection.sendall(head.encode())
                    held_open.register(connection, selectors.EVENT_READ)
                    opened[0] += 1
            time.sleep(min(_REOPENED_SECONDS, max(0.0, end - time.monotonic())))
            for ended, _ in held_open.select(0):
                connection = ended.fileobj
                assert isinstance(connection, socket.socket)
                with suppress(OSError):
                    status = connection.recv(12).rpartition(b" ")[2]
                    opened[int(status or 0)] += bool(status)
                held_open.unregister(connection)
                connection.close()
    return opened


def main() -> int:
    parser = argparse.ArgumentParser("outside", description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="duration of each attack (default 20)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        to, acknowledged = Stagelens(Path(folder)), Counter[str]()
        print(
            "| attack | responses to it | slowest page | slowest probe | regular requests refused | memory |\n"
            "|---|---|---|---|---|---|"
        )
        outcomes = list[Outcome]()
        for name in ATTACKS:
            outcomes.append(attacked(to, name, options.seconds, acknowledged))
            print(outcomes[-1], flush=True)
        to.restart()
        counted = held(to.url).requests
        lost = {name: number for name, number in acknowledged.items() if counted[name] != number}
        print(
            f"{acknowledged.total():,} requests of {len(acknowledged)} honest services acknowledged, lost: {lost or 'none'}"
        )
        wrong = removed_database(to)
        print(f"removed database: {', '.join(wrong) or 'noticed'}")
        to.end()
        slow = any(max(each.pages) > SLOWER_SECONDS.get(each.name, MOST_SECONDS) for each in outcomes)
        grown = max(each.grown for each in outcomes if each.name == "hostile queries") > MOST_BYTES
        return int(bool(lost or wrong) or slow or grown or any(each.refused.total() for each in outcomes))


if __name__ == "__main__":
    sys.exit(main())
