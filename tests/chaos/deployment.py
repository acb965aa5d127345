"""Where it happens: a database, collectors that share it, and a network that leads to them."""

from __future__ import annotations

import contextlib
import http.client
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import text

from stagelens.store.engines.database import open_engine, writing
from tests.chaos.audit import Totals
from tests.chaos.unreliable_network import Network
from tests.support.forked_processes import ForkedProcesses
from tests.support.ports import free_port
from tests.support.postgresql_server import Server

TIMEOUT_SECONDS = 90.0
_LOOK_SECONDS = 0.01


def wait_until(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {TIMEOUT_SECONDS:g} s"
        time.sleep(_LOOK_SECONDS)


@dataclass(slots=True)
class Member:
    port: int = field(default_factory=free_port)
    grpc_port: int = field(default_factory=free_port)
    process: int | None = None

    def is_serving(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=1)
        try:
            connection.request("GET", "/metrics")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


class Deployment:
    def __init__(
        self,
        folder: Path,
        url: str,
        collectors: int,
        rng: random.Random,
        *,
        postgresql: Server | None = None,
        disk: Path | None = None,
    ) -> None:
        self.folder, self.url, self.rng = folder, url, rng
        self.postgresql, self.disk = postgresql, disk
        self.processes = ForkedProcesses(folder / "collectors.log")
        self.members = [Member() for _ in range(collectors)]
        self.network = Network(random.Random(rng.random()))
        self.address = f"http://127.0.0.1:{self.network.listen([member.port for member in self.members])}"
        self.grpc_address = f"127.0.0.1:{self.network.listen([member.grpc_port for member in self.members])}"
        self._clients: list[subprocess.Popen[str]] = []
        self.given_up = 0

    def start(self, member: Member) -> None:
        member.process = self.processes.stagelens(
            "collector",
            STAGELENS_DATABASE=self.url,
            STAGELENS_COLLECTOR_PORT=str(member.port),
            STAGELENS_COLLECTOR_GRPC_PORT=str(member.grpc_port),
        )

    def kill(self, member: Member) -> None:
        assert member.process is not None
        self.processes.kill(member.process)
        member.process = None

    def signal(self, member: Member, number: signal.Signals) -> None:
        assert member.process is not None
        os.kill(member.process, number)

    def wait_for(self, member: Member) -> None:
        def serves() -> bool:
            assert member.process is not None
            if not self.processes.lives(member.process):
                self.kill(member)
                self.start(member)
                self.given_up += 1
            return member.is_serving()

        wait_until(serves, f"the collector at {member.port} serves")

    def send(self, kind: str, service: str, environment: Mapping[str, str] | None = None) -> None:
        address = self.grpc_address if kind.startswith("grpc") else self.address
        command = [sys.executable, "-m", "tests.chaos.senders", kind, service, address]
        with (self.folder / f"{service}.log").open("ab") as log:
            client = subprocess.Popen(
                [*command, str(self.rng.getrandbits(32))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=os.environ | (environment or {}),
            )
        self._clients.append(client)

    def wait_for_clients(self) -> None:
        for client in self._clients:
            assert client.stdout
            assert client.stdout.readline(), f"{client.args} failed; see {self.folder}"

    def log_of(self, service: str) -> str:
        return (self.folder / f"{service}.log").read_text()

    def finish(self) -> list[Totals]:
        for client in self._clients:
            assert client.stdin
            client.stdin.close()
        sent: list[Totals] = []
        while self._clients:
            client = self._clients[0]
            assert client.stdout
            line = client.stdout.readline()
            assert client.wait(TIMEOUT_SECONDS) == 0, f"{client.args} failed; see {self.folder}"
            client.stdout.close()
            sent.append(Totals.from_json(line))
            self._clients.pop(0)
        return sent

    def wait_until_processed(self) -> None:
        """Let the time go by that the spans of a request are waited for, and wait until all are counted."""
        for member in self.members:
            self.wait_for(member)
        engine = open_engine(self.url)
        past = text("UPDATE inbox SET received = received - 100 WHERE counted = 0")
        free, waiting = (
            text("UPDATE leases SET until = 0 WHERE name = 'aggregate'"),
            text("SELECT count(*) FROM inbox WHERE counted = 0"),
        )

        def processed() -> bool:
            with engine.connect() as connection:
                return connection.execute(waiting).scalar_one() == 0

        try:
            # Who was killed while it folded has left a claim.
            with writing(engine, "cannot write to") as connection:
                connection.execute(past)
                connection.execute(free)
            wait_until(processed, "all spans are counted")
        finally:
            engine.dispose()

    def end(self, member: Member) -> None:
        assert member.process is not None
        code = self.processes.end(member.process)
        member.process = None
        assert code == 0, f"a collector ended with {code}; see {self.folder}"

    def close(self) -> None:
        for client in self._clients:
            client.kill()
            client.wait()
            for pipe in (client.stdin, client.stdout):
                with contextlib.suppress(OSError):
                    if pipe:
                        pipe.close()
        self.processes.close()
        self.network.close()
