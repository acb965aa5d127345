"""Plans as real traffic: services under `stagelens run`, requests, a collector, and what the dashboard reads from its store."""

from __future__ import annotations

import asyncio
import io
import os
import socket
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

import aiohttp
from truth.processes import free_port, running, under_stagelens

from stagelens.analysis.attributes import AttributeCounts
from stagelens.collector.serve import Collector, CollectorConfig
from stagelens.core.attributes import band_of
from stagelens.core.hardware import place
from stagelens.core.names import AGENT_COST, AGENT_LEVELS
from stagelens.dashboard.view import DEFAULT_WINDOW
from stagelens.store import Selection, Store

from .simulate import Plan

MOST_REPLICAS = 3
# Bodies are smaller than planned by three bands, because a busy machine needs long to transfer large ones: a cause of its own.
_SMALLER = 4**3
# Number of processes that start or stop at the same time.
_STARTING = 4


@dataclass(slots=True)
class Service:
    """Service of a plan.

    Args:
        plan: Its requests.
        ports: Port of each replica.
        processes: Process id of each replica that has sent a response.
        failed: Requests without the planned response.
    """

    plan: Plan
    ports: dict[int, int] = field(default_factory=dict)
    processes: dict[int, str] = field(default_factory=dict)
    failed: int = 0

    @property
    def name(self) -> str:
        """Name of the service."""
        return f"{self.plan.cause.replace(' ', '-')}-{self.plan.size}-{self.plan.seed}"

    @property
    def replicas(self) -> int:
        """Number of replicas."""
        return len(self.plan.traffic.names["replica"])

    def version(self, replica: int) -> str:
        """Return the version of *replica*, which has the same for all of its requests."""
        traffic = self.plan.traffic
        code = traffic.codes["version"][traffic.codes["replica"] == replica]
        return traffic.names["version"][int(code[0])] if len(code) else ""

    def rename(self) -> None:
        """Name sizes, routes and replicas as the store does."""
        names, host = self.plan.traffic.names, socket.gethostname()
        names["request_size"] = [band_of("bytes", int(start) // _SMALLER) for start in names["request_size"]]
        names["route"] = [f"/{name}" for name in names["route"]]
        names["replica"] = [
            place("process", host, self.processes.get(number, ""), "") for number in range(self.replicas)
        ]


def counts(plans: Sequence[Plan]) -> list[AttributeCounts]:
    """Send the requests of all *plans* at the same time; return what the dashboard reads of each, and print the circumstances."""
    services = [Service(plan) for plan in plans]
    with tempfile.TemporaryDirectory() as folder, closing(Store.open(f"sqlite:///{folder}/stagelens.db")) as store:
        collector = Collector(CollectorConfig(port=0), store)
        collector.start()
        try:
            host, port = collector.address
            with _running(services, f"http://{host}:{port}"):
                asyncio.run(_send(services))
        finally:
            # Services send what is left when they end, and the collector writes it.
            collector.stop()
        now = datetime.now(UTC)
        selections = [Selection(now - DEFAULT_WINDOW, now, service=each.name) for each in services]
        _report(services, store, selections)
        for service in services:
            service.rename()
        return [store.read.attributes(each) for each in selections]


@contextmanager
def _running(services: Sequence[Service], collector: str) -> Generator[None]:
    """Run all replicas, and the chat that some of them call."""
    started: list[AbstractContextManager[None]] = []
    port = free_port()
    with running([sys.executable, *_uvicorn("chat", port)], port, {}):
        chat = f"http://127.0.0.1:{port}"

        def start(service: Service, replica: int) -> None:
            process = _replica(service, replica, collector, chat)
            process.__enter__()
            started.append(process)

        try:
            with ThreadPoolExecutor(_STARTING) as pool:
                jobs = [pool.submit(start, service, each) for service in services for each in range(service.replicas)]
            for job in jobs:
                job.result()
            yield
        finally:
            with ThreadPoolExecutor(_STARTING) as pool:
                list(pool.map(lambda process: process.__exit__(None, None, None), started))


def _replica(service: Service, replica: int, collector: str, chat: str) -> AbstractContextManager[None]:
    port = service.ports[replica] = free_port()
    variables = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector,
        "OTEL_SERVICE_NAME": service.name,
        "STAGELENS_SERVICE_VERSION": service.version(replica),
        "STAGELENS_ATTRIBUTES": "tenant=header:x-tenant",
        # Tokens are counted by the client of a chat, which costs more than all else here.
        **({"CHAT_URL": chat} if service.plan.cause == "token" else {}),
    }
    return running(under_stagelens(_uvicorn("app", port), port), port, variables)


def _uvicorn(app: str, port: int) -> list[str]:
    # The server keeps connections for longer than its client.
    words = f"-m uvicorn services.attributes:{app} --port {port} --log-level warning --no-access-log --timeout-keep-alive 75"
    return words.split()


async def _send(services: Sequence[Service]) -> None:
    """Send all requests when they are due."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=60)) as session:
        start = time.time()
        for service in services:
            service.plan.traffic.start = start
        await asyncio.gather(*(_send_plan(session, each) for each in services))


async def _send_plan(session: aiohttp.ClientSession, service: Service) -> None:
    traffic = service.plan.traffic
    async with asyncio.TaskGroup() as requests:
        for number in range(len(traffic.at)):
            await asyncio.sleep(traffic.start + float(traffic.at[number]) - time.time())
            requests.create_task(_send_request(session, service, number))


async def _send_request(session: aiohttp.ClientSession, service: Service, number: int) -> None:
    traffic = service.plan.traffic
    text = {key: names[int(traffic.codes[key][number])] for key, names in traffic.names.items()}
    numbers = {key: int(each[number]) for key, each in traffic.numbers.items()}
    replica, status = int(traffic.codes["replica"][number]), 500 if text["status"] == "error" else 200
    headers = {
        "x-tenant": text["tenant"],
        "tracestate": f"stagelens={text['caller']}",
        "x-plan": text["plan"],
        "x-model": text["model"],
        "x-batch": str(numbers["batch_size"]),
        "x-input-tokens": str(numbers["input_tokens"]),
        "x-output-tokens": str(numbers["output_tokens"]),
        "x-cold": text["cold"],
        "x-status": str(status),
        "x-seconds": f"{traffic.latency[number]:.6f}",
    }
    url = f"http://127.0.0.1:{service.ports[replica]}/{text['route']}"
    # A file, because a large body of bytes would block the loop.
    body = io.BytesIO(bytes(numbers["request_size"] // _SMALLER))
    try:
        async with session.post(url, data=body, headers=headers) as response:
            await response.read()
            service.processes[replica] = response.headers.get("x-process", "")
            service.failed += response.status != status
    except (aiohttp.ClientError, TimeoutError):
        service.failed += 1


def _report(services: Sequence[Service], store: Store, selections: Sequence[Selection]) -> None:
    """Print whether all requests were counted, and at which level agents recorded."""
    sent, failed = sum(each.plan.size for each in services), sum(each.failed for each in services)
    counted = sum(store.read.latency(each).count for each in selections)
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    print(
        f"{len(services)} services, {sum(each.replicas for each in services)} processes: {sent:,} requests, {failed} failed, "
        f"{counted:,} in the store; load of 1, 5, 15 minutes on {os.cpu_count()} CPUs: {load}"
    )
    for service, selection in zip(services, selections, strict=True):
        costs = store.read.streams(selection, AGENT_COST)
        reduced = [f"{level} ({costs[level].count:,} requests)" for level in AGENT_LEVELS[1:] if level in costs]
        if reduced:
            print(f"{service.name}: the agent recorded less: {', '.join(reduced)}")
    sys.stdout.flush()
