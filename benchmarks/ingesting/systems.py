"""What is measured: the collector with each of its databases, and three peers from PyPI, each in an environment of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from processes import Meter, Process, free_port
from sqlalchemy import create_engine, text

from .databases import DATABASES, Database
from .traffic import SPANS_A_REQUEST

SERVER_CORE, LOAD_CORE = 1, 0

Url = str
# Starts a server over the database of a URL, in a folder, on a port.
Start = Callable[[Url, Path, int], Process]

_REQUESTS = "SELECT coalesce(sum(count), 0) FROM points WHERE tier = 10 AND metric = 1"
_RETAINED = "SELECT count(*) FROM traces"
_SPANS = "SELECT count(*) FROM spans"


@dataclass(frozen=True)
class System:
    """A server that takes spans.

    *held* is SQL that counts what it stores, each *units_each* spans or datapoints, and empty if it stores nothing. It is *durable* if
    what it acknowledges is in the database, *quick* if it takes hundreds of thousands of spans in a reasonable time.
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
        return replace(self, name=self.name.rpartition(",")[0], held=_REQUESTS, units_each=units_a_request)


@dataclass
class Running:
    system: System
    url: Url
    process: Process
    meter: Meter
    database: Database
    folder: Path

    def units(self) -> int:
        if not self.system.held:
            return 0
        engine = create_engine(_driver(self.database.url))
        try:
            with engine.connect() as connection:
                return round(int(connection.execute(text(self.system.held)).scalar_one()) * self.system.units_each)
        finally:
            engine.dispose()

    def kill_and_start_again(self) -> None:
        self.process.kill()
        port = int(self.url.rpartition(":")[2])
        self.process = self.system.start(self.database.url, self.folder, port)
        self.meter = _meter(self.process, self.database)


@contextmanager
def running(system: System, folder: Path, name: str) -> Generator[Running]:
    home = folder / name
    home.mkdir(parents=True)
    home.chmod(0o777)
    with DATABASES[system.engine](home, "ingest") as database:
        if database.server is not None:
            # What it starts later stays on the core with it.
            os.sched_setaffinity(database.server, {SERVER_CORE})
        port = free_port()
        process = system.start(database.url, home, port)
        target = Running(system, f"http://127.0.0.1:{port}", process, _meter(process, database), database, home)
        try:
            yield target
        finally:
            target.process.stop()


def _start(command: list[str], env: dict[str, str], folder: Path, port: int) -> Process:
    process = Process(command, env, folder, core=SERVER_CORE)
    process.wait_for(port)
    return process


def _meter(process: Process, database: Database) -> Meter:
    return Meter(process.pid, *([] if database.server is None else [database.server]))


def _driver(url: Url) -> Url:
    return url.replace("postgresql://", "postgresql+psycopg://")


def ours(engine: str, *, every: bool) -> System:
    def start(url: Url, folder: Path, port: int) -> Process:
        env = {
            "STAGELENS_DATABASE": url,
            "STAGELENS_COLLECTOR_PORT": str(port),
            "STAGELENS_COLLECTOR_GRPC_PORT": "0",
            "STAGELENS_STORAGE_BUDGET": "none",
            "STAGELENS_TRACES": "all" if every else "tail",
        }
        return _start([sys.executable, "-m", "stagelens", "collector"], env, folder, port)

    coverage = "every span kept" if every else "tail kept"
    held = _RETAINED if every else _REQUESTS
    return System(
        f"stagelens, {engine}, {coverage}", start, held, SPANS_A_REQUEST, engine=engine, quick=True, every=every
    )


def phoenix(programs: Path, engine: str) -> System:
    def start(url: Url, folder: Path, port: int) -> Process:
        env = {
            "PHOENIX_WORKING_DIR": str(folder),
            "PHOENIX_SQL_DATABASE_URL": url,
            "PHOENIX_PORT": str(port),
            "PHOENIX_GRPC_PORT": str(free_port()),
            "PHOENIX_TELEMETRY_ENABLED": "false",
        }
        return _start([_program(programs, "arize-phoenix[pg]", "phoenix"), "serve"], env, folder, port)

    return System(f"arize-phoenix, {engine}", start, _SPANS, engine=engine, durable=False)


def mlflow(programs: Path, engine: str) -> System:
    def start(url: Url, folder: Path, port: int) -> Process:
        program = _program(programs, "mlflow psycopg2-binary", "mlflow")
        store = url.replace("postgresql://", "postgresql+psycopg2://")
        command = [program, "server", "--backend-store-uri", store, "--workers", "1", "--port", str(port)]
        env = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
        return _start([*command, "--default-artifact-root", str(folder)], env, folder, port)

    return System(f"mlflow, {engine}", start, _SPANS, headers={"x-mlflow-experiment-id": "0"}, engine=engine)


def rotel(programs: Path) -> System:
    def start(_url: Url, folder: Path, port: int) -> Process:
        environment = _environment(programs, "rotel==0.0.1a15", "rotel")
        (program,) = environment.glob("lib/*/site-packages/rotel/rotel-agent")
        places = ["--otlp-http-endpoint", f"127.0.0.1:{port}", "--otlp-grpc-endpoint", f"127.0.0.1:{free_port()}"]
        return _start([str(program), "start", "--exporter", "blackhole", *places], {}, folder, port)

    return System("rotel, storing nothing", start, "", quick=True)


def _program(programs: Path, packages: str, name: str) -> str:
    return str(_environment(programs, packages, name) / "bin" / name)


def _environment(programs: Path, packages: str, name: str) -> Path:
    folder, installed = (programs / name).resolve(), (programs / name / "installed").resolve()
    if not installed.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([folder / "bin" / "pip", "install", "--quiet", *packages.split()], check=True)
        installed.touch()
    return folder
