"""CPU and memory of each server, idle and with 300 agents and a reader, and how long it takes to end.

    python benchmarks/footprint.py [--agents N] [--seconds N] [--mode split|single]
    python benchmarks/footprint.py --data FOLDER [--seconds N]

The servers run as processes of their own over one PostgreSQL (`split`), all started at the same moment over an empty database; then as
one over an SQLite file (`single`). Agents post every 10 s what `traffic.points` makes: 11 series each, gzip; a reader opens a page every
two seconds. CPU is the share of one core; memory is the resident set at the end, and its peak. With `--data`, only the idle server is
measured, over the store and the objectives that `python benchmarks/fleet.py FOLDER --present` made, after it settled for two minutes.
The server writes to that store.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
from ingesting import traffic
from processes import Process, cpu_seconds, free_port

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.postgresql_server import find_programs, postgresql

IDLE_SECONDS, SETTLE_SECONDS, FLEET_SETTLE_SECONDS = 20, 10, 120
SLOS = "slos:\n" + "".join(
    f"  - {{name: shop-{number}, service: shop-{number}, objective: 0.99, threshold: 250ms, window: 30d}}\n"
    for number in range(5)
)
Servers = list[tuple[str, Process]]


@contextmanager
def started(folder: Path, database: str, names: list[str]) -> Generator[tuple[Servers, str, str]]:
    """Start all at the same moment; give them, and the addresses of the collector and of the dashboard."""
    collector, dashboard = free_port(), free_port()
    if not (folder / "slo.yaml").exists():
        (folder / "slo.yaml").write_text(SLOS)
    servers: Servers = []
    ports: list[int] = []
    for number, name in enumerate(names):
        metrics, logs = free_port(), folder / f"{number}"
        logs.mkdir()
        settings = {
            "COLLECTOR_PORT": collector,
            "DASHBOARD_PORT": dashboard,
            "COLLECTOR_GRPC_PORT": free_port(),
            "ALERTS_METRICS_PORT": metrics,
            "DATABASE": database,
        }
        env = {f"STAGELENS_{key}": str(value) for key, value in settings.items()}
        servers.append((name, Process([sys.executable, "-m", "stagelens", name], env, logs, cwd=folder)))
        ports.append({"collector": collector, "alerts": metrics}.get(name, dashboard))
    try:
        for (_, server), port in zip(servers, ports, strict=True):
            server.wait_for(port)
        yield servers, f"http://127.0.0.1:{collector}", f"http://127.0.0.1:{dashboard}"
    finally:
        for _, server in servers:
            server.kill()


def shares(servers: Servers, seconds: float, work: Callable[[float], object] = time.sleep) -> list[float]:
    """Return the share of a core of each, in percent of *seconds*, until *work* is done, which may take longer."""
    before = [cpu_seconds(server.pid) for _, server in servers]
    work(seconds)
    return [100 * (cpu_seconds(server.pid) - then) / seconds for (_, server), then in zip(servers, before, strict=True)]


def memory(server: Process) -> str:
    resident, peak = (server.memory_bytes(field) / 2**20 for field in ("VmRSS", "VmHWM"))
    return f"{resident:5.0f} MiB, peak {peak:5.0f} MiB"


def load(collector: str, dashboard: str, agents: int, seconds: float) -> None:
    """Send the exports of *agents* evenly, and read a page every two seconds."""
    gap, began = 10 / agents, time.monotonic()
    exports = traffic.points()
    with httpx.Client(timeout=600, limits=httpx.Limits(keepalive_expiry=1)) as client, ThreadPoolExecutor(32) as pool:
        responses: list[Future[httpx.Response]] = []
        for number in range(int(seconds / gap)):
            if number % traffic.AGENTS == 0:
                exports = traffic.points()
            export = exports(number)
            url = f"{collector}{export.path}"
            responses.append(pool.submit(client.post, url, content=export.body, headers=export.headers))
            if number % max(1, int(2 / gap)) == 0:
                responses.append(pool.submit(client.get, f"{dashboard}/s/shop-{number % 5}"))
            time.sleep(max(0.0, began + (number + 1) * gap - time.monotonic()))
    for response in responses:
        response.result().raise_for_status()


def measure(servers: Servers, collector: str, dashboard: str, agents: int, seconds: float) -> None:
    time.sleep(SETTLE_SECONDS)
    idle, resting = shares(servers, IDLE_SECONDS), [memory(server) for _, server in servers]
    busy = shares(servers, seconds, lambda seconds: load(collector, dashboard, agents, seconds))
    for place, (name, server) in enumerate(servers):
        loaded, began = memory(server), time.monotonic()
        code = server.stop()
        print(
            f"{name:<10} idle {idle[place]:5.1f} % {resting[place]}   load {busy[place]:5.1f} % {loaded}   "
            f"ends in {time.monotonic() - began:4.1f} s, code {code}",
            flush=True,
        )


def split(agents: int, seconds: float) -> None:
    programs = find_programs()
    if programs is None:
        sys.exit("there is no PostgreSQL on this machine: apt-get install postgresql")
    print(f"split, {agents} agents")
    names = ["collector", "alerts", "alerts", "dashboard"]
    with (
        postgresql(programs) as server,
        tempfile.TemporaryDirectory() as folder,
        started(Path(folder), server.new_database(), names) as (servers, collector, dashboard),
    ):
        measure(servers, collector, dashboard, agents, seconds)


def single(agents: int, seconds: float) -> None:
    print(f"single, {agents} agents")
    with (
        tempfile.TemporaryDirectory() as folder,
        started(Path(folder), f"sqlite:///{folder}/store.db", ["up"]) as (servers, collector, dashboard),
    ):
        measure(servers, collector, dashboard, agents, seconds)


def idle(folder: Path, seconds: float) -> None:
    with started(folder, f"sqlite:///{folder.absolute()}/fleet.db", ["up"]) as (servers, _, _):
        time.sleep(FLEET_SETTLE_SECONDS)
        share, *_ = shares(servers, seconds)
        print(f"up         idle {share:5.2f} % {memory(servers[0][1])}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=300, help="that post every 10 s (default 300)")
    parser.add_argument("--seconds", type=float, default=60, help="of load (default 60)")
    parser.add_argument("--mode", choices=("split", "single"), help="only this one (default both)")
    parser.add_argument("--data", type=Path, help="folder of a fleet, on which the server is idle")
    options = parser.parse_args()
    if options.data is not None:
        idle(options.data, options.seconds)
        return
    if options.mode != "single":
        split(options.agents, options.seconds)
    if options.mode != "split":
        single(options.agents, options.seconds)


if __name__ == "__main__":
    main()
