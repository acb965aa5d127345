"""Programs that send until their input ends, deliver what is left, and print what they sent: the truth to compare with.

    python -m tests.chaos.senders KIND SERVICE ADDRESS SEED

They print a line when they begin, and one when all is delivered.
Each is a real sender in a process of its own; only how long it waits between two attempts is cut short.
"""

from __future__ import annotations

import os
import random
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from tests.chaos.audit import Totals

# From one burst of requests to the next. [seconds]
PAUSE_SECONDS = 0.02
ROUTES = ("/predict", "/embed", "/classify")


class Work:
    def __init__(self, service: str, rng: random.Random) -> None:
        self.service, self.rng = service, rng
        self.sent = Totals()
        self.ended = threading.Event()
        threading.Thread(target=self._wait, daemon=True).start()

    def _wait(self) -> None:
        sys.stdin.read()
        self.ended.set()

    def bursts(self) -> Iterator[int]:
        print("begins", flush=True)
        while not self.ended.wait(PAUSE_SECONDS):
            yield self.rng.randint(1, 20)

    def request(self) -> dict[str, int]:
        stages = {stage: self.rng.randint(1, 40_000) for stage in ("queue", "preprocess", "forward", "overhead")}
        self.sent.add(self.service, stages)
        return stages


def agent(work: Work, address: str) -> None:
    from stagelens.instrumentors import recorder  # noqa: PLC0415 - each kind loads what it needs
    from stagelens.instrumentors.agent.worker import Agent  # noqa: PLC0415
    from stagelens.instrumentors.config import AgentConfig  # noqa: PLC0415
    from stagelens.instrumentors.export import exporter, responses  # noqa: PLC0415

    exporter.BACKOFF_BASE_SECONDS, exporter.BACKOFF_CAP_SECONDS = 0.05, 0.5
    responses.MAX_RETRY_AFTER_SECONDS = 0.5
    settings = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": address,
        "OTEL_EXPORTER_OTLP_TIMEOUT": "1500",
        "OTEL_SERVICE_NAME": work.service,
        "STAGELENS_EXPORT_INTERVAL": "0.25s",
        "STAGELENS_OVERHEAD_BUDGET": "none",
    }
    mine = Agent(AgentConfig.from_env(settings | os.environ))
    recorder.background = recorder.Background(mine.run)
    for burst in work.bursts():
        for _ in range(burst):
            _record(work.request(), work.rng.choice(ROUTES))
    # Once more for what the first may have had to drop: it says so in an export of its own.
    for _ in range(2):
        while not mine.flush(5.0):
            pass


def _record(stages_us: dict[str, int], route: str) -> None:
    from stagelens.instrumentors import recorder, records  # noqa: PLC0415

    end = records.clock()
    at = start = end - sum(stages_us.values()) * 1000
    marks: records.Marks = [records.OPEN, start, 0]
    for stage, spent in stages_us.items():
        if stage != "overhead":
            marks += (stage, at, at + spent * 1000)
            at += spent * 1000
    recorder.finish(marks, start, end, route=route)


def sdk(kind: str, work: Work, address: str) -> None:
    from tests.chaos import sdk_clients  # noqa: PLC0415

    sdk_clients.send(kind, work, address)


def raw(work: Work, address: str) -> None:
    """Be four senders with one list of bodies, named and unnamed; some are sent by two at once, or again long after."""
    from tests.chaos.raw_bodies import Sender, bodies  # noqa: PLC0415

    todo = bodies(work)
    sending = threading.Lock()
    done: list[Any] = []

    def send(sender: Sender, rng: random.Random) -> None:
        while True:
            with sending:
                body = next(todo, None)
            if body is None:
                return
            # Who lost patience sends it beside itself.
            twin = threading.Thread(target=sender.deliver, args=(body,)) if rng.random() < 0.2 else None
            if twin:
                twin.start()
            sender.deliver(body)
            if twin:
                twin.join()
            done.append(body)
            if rng.random() < 0.1:
                sender.deliver(rng.choice(done))

    threads = [
        threading.Thread(target=send, args=(Sender(address, seed), random.Random(seed)))
        for seed in (work.rng.random() for _ in range(4))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


KINDS: dict[str, Callable[[Work, str], None]] = {
    "agent": agent,
    "raw": raw,
    **{kind: partial(sdk, kind) for kind in ("sdk", "grpc", "spans", "grpc_spans")},
}


def main(kind: str, service: str, address: str, seed: str) -> None:
    work = Work(service, random.Random(int(seed)))
    KINDS[kind](work, address)
    print(work.sent.to_json(), flush=True)
    # Whatever else a library still waits for has nothing to do with what was sent.
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
