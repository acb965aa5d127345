"""Measurement rounds: each runs the command without and with instrumentation, in random order, and compares both.

The result is the median of the ratios within a round: times drift with the other load of the machine. Its confidence interval uses
order statistics, so it assumes no distribution.
"""

from __future__ import annotations

import http.client
import os
import random
import socket
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from itertools import count
from typing import NamedTuple, TypeAlias
from urllib.parse import SplitResult, urlsplit

from ...core.errors import StagelensError
from ...core.histogram import has_enough_samples, ranks
from .. import run
from ..config_file import apply_config_file
from ..session import Session, pause

# Measured values of one turn, by name of the measure.
Turn: TypeAlias = Mapping[str, float]
# Placeholder of the port in the command and the URL, which lets both variants run at the same time.
PORT = "{port}"
# https://docs.kernel.org/networking/ip-sysctl.html: ip_local_port_range begins at 32768.
_PORTS = range(10_000, 32_768)
# The highest percentile that the requests of a turn can resolve is reported.
_TAILS = (0.999, 0.99, 0.95, 0.9)
TIMEOUT_SECONDS = 60.0
_FAILED = 400
_SHOWN_CHARS = 200


class Change(NamedTuple):
    """Medians of a measure without and with instrumentation, and of their ratio with a 95 % confidence interval, None with too few rounds."""

    without: float
    with_: float
    ratio: float
    low: float | None
    high: float | None

    @property
    def is_noise(self) -> bool:
        return self.low is None or self.high is None or self.low <= 1 <= self.high


def change(pairs: Sequence[tuple[float, float]]) -> Change:
    """Return the change between the first and second values of *pairs*.

    >>> change([(1.0, 1.1)] * 6).high
    1.1
    """
    ratios = sorted(with_ / without for without, with_ in pairs)
    first, last = ranks(len(ratios), 0.5)
    has_interval = first >= 1 and last <= len(ratios)
    return Change(
        statistics.median(without for without, _ in pairs),
        statistics.median(with_ for _, with_ in pairs),
        statistics.median(ratios),
        ratios[first - 1] if has_interval else None,
        ratios[last - 1] if has_interval else None,
    )


def changes(rounds: Sequence[tuple[Turn, Turn]]) -> dict[str, Change]:
    names = [name for name in rounds[0][0] if all(turn.get(name, 0) > 0 for both in rounds for turn in both)]
    return {name: change([(without[name], with_[name]) for without, with_ in rounds]) for name in names}


CPU, TIME, THROUGHPUT = "CPU time", "time", "throughput"

Both: TypeAlias = tuple[Turn, Turn]


@dataclass(frozen=True, slots=True)
class Plan:
    command: Sequence[str]
    asking: RequestSpec | None
    load: str
    requests: int
    concurrency: int
    rounds: int
    warm_up: int
    start_timeout_seconds: float
    # Without and with Stagelens.
    environments: tuple[Mapping[str, str], Mapping[str, str]] = ({}, {})


def environments(
    current: Mapping[str, str], stages: Sequence[str], endpoint: str
) -> tuple[dict[str, str], dict[str, str]]:
    here = {
        name: value for name, value in apply_config_file(current).items() if not name.startswith("OTEL_EXPORTER_OTLP_")
    }
    here |= {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}
    theirs = [entry for entry in current.get("PYTHONPATH", "").split(os.pathsep) if entry != str(run.AUTOLOAD)]
    without = {name: value for name, value in here.items() if name not in ("PYTHONPATH", run.PID_VARIABLE)}
    if theirs != [""]:
        without["PYTHONPATH"] = os.pathsep.join(theirs)
    return without, run.environment(here, stages)


def measure_rounds(plan: Plan) -> Iterator[Both]:
    if plan.asking is None:
        yield from _in_turn(plan, lambda variant: _measure_command(plan, plan.environments[variant]))
    elif PORT in " ".join(plan.command):
        yield from _at_once(plan, plan.asking)
    else:
        asking = plan.asking
        _check_free(asking)
        yield from _in_turn(plan, lambda variant: _measure_fresh_service(plan, asking, plan.environments[variant]))


def _in_turn(plan: Plan, measure: Callable[[int], Turn]) -> Iterator[Both]:
    for _ in range(plan.rounds):
        turns = {variant: measure(variant) for variant in random.sample((0, 1), 2)}
        yield turns[0], turns[1]


def _at_once(plan: Plan, asking: RequestSpec) -> Iterator[Both]:
    with ExitStack() as stack:
        running: list[tuple[Session, Plan, RequestSpec]] = []
        for env in plan.environments:
            port = str(_free_port())
            service_plan = replace(
                plan, command=[word.replace(PORT, port) for word in plan.command], load=plan.load.replace(PORT, port)
            )
            there = replace(asking, url=asking.url.replace(PORT, port))
            service = stack.enter_context(Session(service_plan.command, env))
            _make_ready(service, service_plan, there)
            running.append((service, service_plan, there))
        yield from _in_turn(plan, lambda variant: _measure_load(*running[variant]))


def _measure_fresh_service(plan: Plan, asking: RequestSpec, env: Mapping[str, str]) -> Turn:
    with Session(plan.command, env) as service:
        _make_ready(service, plan, asking)
        return _measure_load(service, plan, asking)


def _make_ready(service: Session, plan: Plan, asking: RequestSpec) -> None:
    wait_until_ready(service, asking, plan.start_timeout_seconds)
    if plan.load:
        run_load(plan.load)
    elif plan.warm_up:
        burst(asking, plan.warm_up, plan.concurrency)


def _measure_load(service: Session, plan: Plan, asking: RequestSpec) -> Turn:
    cpu_before, started = service.cpu_seconds(), time.perf_counter()
    latencies = [] if plan.load else burst(asking, plan.requests, plan.concurrency)
    if plan.load:
        run_load(plan.load)
    took, cpu = time.perf_counter() - started, service.cpu_seconds()
    turn = {TIME: took} if plan.load else _latency_measures(latencies, took)
    if cpu is not None and cpu_before is not None:
        turn[CPU] = (cpu - cpu_before) / (1 if plan.load else plan.requests)
    return turn


def _measure_command(plan: Plan, env: Mapping[str, str]) -> Turn:
    started = time.perf_counter()
    with Session(plan.command, env) as service:
        cpu = service.wait()
        return {TIME: time.perf_counter() - started, CPU: cpu}


def _latency_measures(latencies: Sequence[float], took: float) -> dict[str, float]:
    turn = {"p50": statistics.median(latencies)}
    for tail in (tail for tail in _TAILS if has_enough_samples(len(latencies), tail)):
        turn[f"p{tail * 100:g}"] = latencies[round(tail * len(latencies)) - 1]
        break
    return {**turn, THROUGHPUT: len(latencies) / took}


def _check_free(asking: RequestSpec) -> None:
    parts = urlsplit(asking.url)
    with socket.socket() as tried:
        tried.settimeout(1)
        is_taken = tried.connect_ex((parts.hostname or "", parts.port or 80)) == 0
    if is_taken:
        msg = (
            f"another process already listens on {parts.netloc} and would be measured instead.\n"
            f"    Stop it, or write {PORT} instead of the port in the command and in --url"
        )
        raise StagelensError(msg)


def _free_port() -> int:
    """Return a free port outside the ephemeral range, because the command binds it only later."""
    while True:
        port = random.choice(_PORTS)  # noqa: S311 - a port, no secret
        with socket.socket() as free, suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port


@dataclass(frozen=True, slots=True)
class RequestSpec:
    url: str
    method: str = "GET"
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    def connect(self) -> http.client.HTTPConnection:
        parts = urlsplit(self.url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        return kind(parts.hostname or "", parts.port, timeout=TIMEOUT_SECONDS)

    def ask(self, connection: http.client.HTTPConnection) -> tuple[int, bytes]:
        try:
            connection.request(
                self.method, _request_target(urlsplit(self.url)), body=self.body, headers=dict(self.headers)
            )
        except (ValueError, http.client.InvalidURL) as error:
            msg = f"the request cannot be sent: {error}"
            raise StagelensError(msg) from error
        response = connection.getresponse()
        return response.status, response.read()

    def responds(self) -> bool:
        connection = self.connect()
        try:
            self.ask(connection)
        except (OSError, http.client.HTTPException):
            return False
        else:
            return True
        finally:
            connection.close()


def wait_until_ready(service: Session, asking: RequestSpec, start_timeout_seconds: float) -> None:
    deadline = time.monotonic() + start_timeout_seconds
    while not asking.responds():
        if service.code is not None or time.monotonic() > deadline:
            msg = f"{service.failure()}\n    {asking.url} does not respond; --patience sets the time to wait"
            raise StagelensError(msg)
        pause()


def burst(asking: RequestSpec, requests: int, concurrency: int) -> list[float]:
    """Send *requests*, *concurrency* of them at a time; return their latencies in seconds, sorted. A failed request raises StagelensError."""
    numbers, lock = count(), threading.Lock()

    def work() -> list[float]:
        latencies: list[float] = []
        connection = asking.connect()
        try:
            while True:
                with lock:
                    if next(numbers) >= requests:
                        return latencies
                started = time.perf_counter()
                status, body = _ask_or_reconnect(asking, connection)
                latencies.append(time.perf_counter() - started)
                if status >= _FAILED:
                    msg = f"{asking.url} returns HTTP {status}: {body[:_SHOWN_CHARS].decode(errors='replace')}"
                    raise StagelensError(msg)
        finally:
            connection.close()

    with ThreadPoolExecutor(concurrency) as threads:
        return sorted(
            latency for done in [threads.submit(work) for _ in range(concurrency)] for latency in done.result()
        )


def run_load(command: str) -> None:
    done = subprocess.run(command, shell=True, check=False, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)  # noqa: S602 - the user's own command line
    if done.returncode:
        msg = f"--load failed with exit code {done.returncode}: {command}"
        raise StagelensError(msg)


def _ask_or_reconnect(asking: RequestSpec, connection: http.client.HTTPConnection) -> tuple[int, bytes]:
    try:
        return asking.ask(connection)
    except (OSError, http.client.HTTPException) as error:
        # A server may close an idle connection; a retry on a new one shows whether this was the cause.
        connection.close()
        try:
            return asking.ask(connection)
        except (OSError, http.client.HTTPException):
            msg = f"{asking.url} no longer responds ({error or type(error).__name__})"
            raise StagelensError(msg) from error


def _request_target(parts: SplitResult) -> str:
    return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
