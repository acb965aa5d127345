"""What is measured: the collector with each of its databases, and three peers from PyPI, each in an environment of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from sqlalchemy import create_engine, text
from storage import engines

from .processes import SERVER_CORE, Meter, Process, free_port
from .traffic import SPANS_A_REQUEST

Url = str
# Starts a server over the database of a URL, in a folder, on a port.
Start = Callable[[Url, Path, int], Process]

_REQUESTS = "SELECT coalesce(sum(count), 0) FROM points WHERE tier = 10 AND metric = 1"
_RETAINED = "SELECT count(*) FROM traces"
_SPANS = "SELECT count(*) FROM spans"


@dataclass(frozen=True)
class System:
    """A server that takes spans, and the question that tells how many are in its database.

    Args:
        name: In the tables.
        start: Starts it.
        held: SQL that counts what it holds; empty if it stores nothing.
        units_each: How many spans, or datapoints, one of those is.
        headers: Sent with every export.
        engine: `sqlite` or `postgresql`.
        durable: Whether what it acknowledges is in the database, as it says.
        quick: Whether it takes hundreds of thousands of spans in a reasonable time.
        every: Whether it keeps every span, and not only what tells something.
    """

    name: str
    start: Start
    held: str
    units_each: float = 1
    headers: dict[str, str] = field(default_factory=dict[str, str])
    engine: str = "sqlite"
    durable: bool = True
    quick: bool = False
    every: bool = True

    def for_points(self, units_a_request: float) -> System:
        """Return it as it takes datapoints, so many for each request that they count."""
        return replace(self, name=self.name.rpartition(",")[0], held=_REQUESTS, units_each=units_a_request)


@dataclass
class Running:
    """A system that runs, or has been killed.

    Args:
        system: Which.
        url: Where it listens.
        process: The server.
        meter: Of its CPU time, the database's included.
        site: Its database.
        folder: Where it runs.
    """

    system: System
    url: Url
    process: Process
    meter: Meter
    site: engines.Site
    folder: Path

    def units(self) -> int:
        """Return how many spans, or datapoints, are in the database."""
        if not self.system.held:
            return 0
        engine = create_engine(_driver(self.site.url))
        try:
            with engine.connect() as connection:
                return round(int(connection.execute(text(self.system.held)).scalar_one()) * self.system.units_each)
        finally:
            engine.dispose()

    def stored_bytes(self) -> int:
        """Return the size of the database on disk."""
        return sum(path.stat().st_size for path in self.site.all_files())

    def kill_and_start_again(self) -> None:
        """Kill it (SIGKILL), and start it over the same database."""
        self.process.kill()
        port = int(self.url.rpartition(":")[2])
        self.process = self.system.start(self.site.url, self.folder, port)
        self.meter = _meter(self.process, self.site)


@contextmanager
def running(system: System, folder: Path, name: str) -> Generator[Running]:
    """Run *system* over a database of its own, *name*, in *folder*."""
    home = folder / name
    home.mkdir(parents=True)
    home.chmod(0o777)
    with engines.ENGINES[system.engine](home, "ingest") as site:
        if site.server is not None:
            # What it starts later stays on the core with it.
            os.sched_setaffinity(site.server, {SERVER_CORE})
        port = free_port()
        process = system.start(site.url, home, port)
        found = Running(system, f"http://127.0.0.1:{port}", process, _meter(process, site), site, home)
        try:
            yield found
        finally:
            found.process.stop()


def _meter(process: Process, site: engines.Site) -> Meter:
    return Meter(process.pid, *([] if site.server is None else [site.server]))


def _driver(url: Url) -> Url:
    return url.replace("postgresql://", "postgresql+psycopg://")


def ours(engine: str, *, every: bool) -> System:
    """Return our collector over *engine*, which keeps the tail of traces, or every span."""

    def start(url: Url, folder: Path, port: int) -> Process:
        env = {
            "STAGELENS_DATABASE": url,
            "STAGELENS_COLLECTOR_PORT": str(port),
            "STAGELENS_COLLECTOR_GRPC_PORT": "0",
            "STAGELENS_STORAGE_BUDGET": "none",
            "STAGELENS_TRACES": "all" if every else "tail",
        }
        return Process([sys.executable, "-m", "stagelens", "collector"], env, folder, port)

    coverage = "every span kept" if every else "tail kept"
    held = _RETAINED if every else _REQUESTS
    return System(
        f"stagelens, {engine}, {coverage}", start, held, SPANS_A_REQUEST, engine=engine, quick=True, every=every
    )


def phoenix(programs: Path, engine: str) -> System:
    """Return arize-phoenix, installed below *programs*."""

    def start(url: Url, folder: Path, port: int) -> Process:
        env = {
            "PHOENIX_WORKING_DIR": str(folder),
            "PHOENIX_SQL_DATABASE_URL": url,
            "PHOENIX_PORT": str(port),
            "PHOENIX_GRPC_PORT": str(free_port()),
            "PHOENIX_TELEMETRY_ENABLED": "false",
        }
        return Process([_program(programs, "arize-phoenix[pg]", "phoenix"), "serve"], env, folder, port)

    return System(f"arize-phoenix, {engine}", start, _SPANS, engine=engine, durable=False)


def mlflow(programs: Path, engine: str) -> System:
    """Return mlflow, installed below *programs*, with one worker: it has one core."""

    def start(url: Url, folder: Path, port: int) -> Process:
        program = _program(programs, "mlflow psycopg2-binary", "mlflow")
        store = url.replace("postgresql://", "postgresql+psycopg2://")
        command = [program, "server", "--backend-store-uri", store, "--workers", "1", "--port", str(port)]
        env = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
        return Process([*command, "--default-artifact-root", str(folder)], env, folder, port)

    return System(f"mlflow, {engine}", start, _SPANS, headers={"x-mlflow-experiment-id": "0"}, engine=engine)


def rotel(programs: Path) -> System:
    """Return Rotel, a collector written in Rust, which receives and batches spans, and discards them."""

    def start(_url: Url, folder: Path, port: int) -> Process:
        environment = _environment(programs, "rotel==0.0.1a15", "rotel")
        (program,) = environment.glob("lib/*/site-packages/rotel/rotel-agent")
        places = ["--otlp-http-endpoint", f"127.0.0.1:{port}", "--otlp-grpc-endpoint", f"127.0.0.1:{free_port()}"]
        return Process([str(program), "start", "--exporter", "blackhole", *places], {}, folder, port)

    return System("rotel, storing nothing", start, "", quick=True)


def _program(programs: Path, packages: str, name: str) -> str:
    return str(_environment(programs, packages, name) / "bin" / name)


def _environment(programs: Path, packages: str, name: str) -> Path:
    """Return the environment *name* with *packages*, installed when it is first used."""
    folder, installed = (programs / name).resolve(), (programs / name / "installed").resolve()
    if not installed.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([folder / "bin" / "pip", "install", "--quiet", *packages.split()], check=True)
        installed.touch()
    return folder
