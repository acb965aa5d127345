"""What each part takes on its own, idle and with 300 agents and a reader, and how long it takes to end: for the chart's requests.

    python benchmarks/footprint.py [--agents N] [--seconds N] [--mode split|single]
    python benchmarks/footprint.py --data FOLDER [--seconds N]

The parts run as processes of their own over one PostgreSQL (`split`), all started at the same moment over an empty database,
as a cluster starts them; then as one over an SQLite file (`single`). Agents post every 10 s what traffic.points() makes: 11
series each, gzip; a reader opens a page every two seconds. CPU is the share of one core that the process takes; memory is its
resident set at the end, and its peak. With `--data`, only the idle server is measured, over the store and the objectives that
`python benchmarks/fleet.py FOLDER --present` made, after it settled for two minutes. The server writes to that store.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

sys.path.insert(0, str(Path(__file__).parents[1]))
from ingesting import traffic
from ingesting.processes import free_port

from tests.support.postgresql_server import find_programs, postgresql

IDLE_SECONDS, SETTLE_SECONDS, FLEET_SETTLE_SECONDS = 20, 10, 120
SLOS = "slos:\n" + "".join(
    f"  - {{name: shop-{number}, service: shop-{number}, objective: 0.99, threshold: 250ms, window: 30d}}\n"
    for number in range(5)
)


@dataclass
class Part:
    """A process that runs.

    Args:
        name: What it is called here.
        process: It.
        log: What it says.
    """

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def cpu_seconds(self) -> float:
        """Return what it has taken."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def mebibytes(self, line: str) -> float:
        """Return its memory: VmRSS, or VmHWM for the peak."""
        found = re.search(rf"{line}:\s+(\d+) kB", Path(f"/proc/{self.process.pid}/status").read_text())
        return int(found[1]) / 1024 if found else 0.0


@contextmanager
def started(folder: Path, database: str, names: list[str]) -> Generator[tuple[list[Part], str, str]]:
    """Start all at the same moment; give them, and where the collector and the dashboard are."""
    ports = {key: str(free_port()) for key in ("COLLECTOR_PORT", "DASHBOARD_PORT")}
    if not (folder / "slo.yaml").exists():
        (folder / "slo.yaml").write_text(SLOS)
    parts: list[Part] = []
    for name in names:
        own = {f"STAGELENS_{key}": port for key, port in ports.items()}
        own |= {"STAGELENS_DATABASE": database, "STAGELENS_COLLECTOR_GRPC_PORT": str(free_port())}
        own |= {"STAGELENS_ALERTS_METRICS_PORT": str(free_port())}
        log = folder / f"{name}-{len(parts)}.log"
        command = [sys.executable, "-m", "stagelens", name]
        with log.open("wb") as output:
            process = subprocess.Popen(command, env=os.environ | own, cwd=folder, stdout=output, stderr=output)
        parts.append(Part(name, process, log))
    try:
        while not all(re.search(r"^stagelens \d", part.log.read_text(), re.MULTILINE) for part in parts):
            if any(part.process.poll() is not None for part in parts):
                sys.exit("\n".join(part.log.read_text() for part in parts))
            time.sleep(0.2)
        yield parts, *(f"http://127.0.0.1:{ports[key]}" for key in ("COLLECTOR_PORT", "DASHBOARD_PORT"))
    finally:
        for part in parts:
            part.process.kill()
            part.process.wait()


def shares(parts: list[Part], seconds: float, work: Callable[[float], object] = time.sleep) -> list[float]:
    """Return the share of a core each takes, in percent of *seconds*, until *work* is done, which may take longer."""
    before = [part.cpu_seconds() for part in parts]
    work(seconds)
    return [100 * (part.cpu_seconds() - then) / seconds for part, then in zip(parts, before, strict=True)]


def load(collector: str, dashboard: str, agents: int, seconds: float) -> None:
    """Send what *agents* send, evenly, and read a page every two seconds."""
    gap, began = 10 / agents, time.monotonic()
    exports = traffic.points()
    with httpx.Client(timeout=600, limits=httpx.Limits(keepalive_expiry=1)) as client, ThreadPoolExecutor(32) as pool:
        asked: list[Future[httpx.Response]] = []
        for number in range(int(seconds / gap)):
            if number % traffic.AGENTS == 0:
                exports = traffic.points()
            export = exports(number)
            url = f"{collector}{export.path}"
            asked.append(pool.submit(client.post, url, content=export.body, headers=export.headers))
            if number % max(1, int(2 / gap)) == 0:
                asked.append(pool.submit(client.get, f"{dashboard}/s/shop-{number % 5}"))
            time.sleep(max(0.0, began + (number + 1) * gap - time.monotonic()))
    for each in asked:
        each.result().raise_for_status()


def measure(parts: list[Part], collector: str, dashboard: str, agents: int, seconds: float) -> None:
    """Print a line for each part."""
    time.sleep(SETTLE_SECONDS)
    idle, resting = shares(parts, IDLE_SECONDS), [part.mebibytes("VmRSS") for part in parts]
    busy = shares(parts, seconds, lambda seconds: load(collector, dashboard, agents, seconds))
    for place, part in enumerate(parts):
        memory = part.mebibytes("VmRSS"), part.mebibytes("VmHWM")
        began = time.monotonic()
        part.process.terminate()
        part.process.wait()
        ended = time.monotonic() - began
        print(
            f"{part.name:<10} idle {idle[place]:5.1f} % {resting[place]:5.0f} MiB   load {busy[place]:5.1f} % "
            f"{memory[0]:5.0f} MiB, peak {memory[1]:5.0f} MiB   ends in {ended:4.1f} s, code {part.process.returncode}",
            flush=True,
        )


def main() -> None:
    """Run both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=300, help="how many post every 10 s (default 300)")
    parser.add_argument("--seconds", type=float, default=60, help="for how long (default 60)")
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


def split(agents: int, seconds: float) -> None:
    """Measure the parts, each a process."""
    programs = find_programs()
    if programs is None:
        sys.exit("there is no PostgreSQL on this machine: apt-get install postgresql")
    print(f"split, {agents} agents")
    names = ["collector", "alerts", "alerts", "dashboard"]
    with (
        postgresql(programs) as server,
        tempfile.TemporaryDirectory() as folder,
        started(Path(folder), server.new_database(), names) as (parts, collector, dashboard),
    ):
        measure(parts, collector, dashboard, agents, seconds)


def single(agents: int, seconds: float) -> None:
    """Measure all in one process."""
    print(f"single, {agents} agents")
    with (
        tempfile.TemporaryDirectory() as folder,
        started(Path(folder), f"sqlite:///{folder}/store.db", ["up"]) as (parts, collector, dashboard),
    ):
        measure(parts, collector, dashboard, agents, seconds)


def idle(folder: Path, seconds: float) -> None:
    """Measure the idle server with the data in *folder*."""
    with started(folder, f"sqlite:///{folder.absolute()}/fleet.db", ["up"]) as (parts, _, _):
        time.sleep(FLEET_SETTLE_SECONDS)
        share, *_ = shares(parts, seconds)
        memory = parts[0].mebibytes("VmRSS"), parts[0].mebibytes("VmHWM")
    print(f"up         idle {share:5.2f} % {memory[0]:5.0f} MiB, peak {memory[1]:5.0f} MiB")


if __name__ == "__main__":
    main()
