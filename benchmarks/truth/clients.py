"""Clients that ask a service at once, each on a connection that is kept, and write down what was planted."""

from __future__ import annotations

import http.client
import itertools
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

from .stacks import Scenario


@dataclass(frozen=True, slots=True)
class Asked:
    """One request.

    Args:
        trace_id: What it was called.
        truth: What it took, by stage. [nanoseconds]
    """

    trace_id: str
    truth: dict[str, int]


class Clients:
    """So many clients at one service.

    Args:
        scenario: What they ask for.
        port: Where the service listens.
        seed: Of the times they ask for.
    """

    def __init__(self, scenario: Scenario, port: int, seed: int) -> None:
        self._scenario = scenario
        self._port = port
        self._seed = seed
        self._asked: list[Asked] = []
        self._failed: list[BaseException] = []

    def ask(self, requests: int, at_once: int) -> list[Asked]:
        """Send *requests*, *at_once* of them at any time.

        Raises:
            RuntimeError: One failed.
        """
        numbers = iter(range(requests))
        threads = [threading.Thread(target=self._run, args=(numbers,)) for _ in range(at_once)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._failed:
            msg = f"a request to {self._scenario.path} failed"
            raise RuntimeError(msg) from self._failed[0]
        return self._asked

    def _run(self, numbers: Iterator[int]) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=120)
        try:
            for number in numbers:
                self._asked.append(self._ask(connection, number))
        except BaseException as error:  # noqa: BLE001 - raised by `ask`
            self._failed.append(error)
            # The others stop too.
            for _ in numbers:
                pass
        finally:
            connection.close()

    def _ask(self, connection: http.client.HTTPConnection, number: int) -> Asked:
        plan = self._scenario.draw(self._seed, number)
        trace_id = f"{next(_trace_ids):032x}"
        headers = {"Content-Type": "application/json", "traceparent": f"00-{trace_id}-{1:016x}-01"}
        body = json.dumps(plan)
        sent = time.time_ns() // 1000 * 1000
        if "proxy" in plan:
            sent -= round(plan["proxy"] * 1e6) * 1000
            headers["X-Request-Start"] = f"t={sent // 1000}"
        connection.request("POST", self._scenario.path, body, headers)
        response = connection.getresponse()
        content = response.read()
        answered = int(response.headers.get("x-answered", 0))
        if response.status != http.client.OK:
            msg = f"{response.status}: {content[:500]!r}"
            raise RuntimeError(msg)
        # A stream tells in its last line.
        reported = json.loads(content.splitlines()[-1])
        return Asked(trace_id, self._scenario.truth(sent, answered, reported))


_trace_ids = itertools.count(1)
