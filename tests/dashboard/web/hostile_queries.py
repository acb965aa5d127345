"""Hostile queries to the API of Prometheus of a running `stagelens up`, and the memory of its process.

python -m tests.dashboard.web.hostile_queries [--queries 1000] [--clients 8]
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from stagelens.store import Series
from tests.support.process_output import Printing
from tests.support.raw_requests import Request, Site

MEGABYTE = 1 << 20
# `up` returns free memory to the system once a minute.
TRIM_SECONDS = 65
_SERVICES, _ROUTES, _MINUTES = 4, 60, 45
_RATE, _LATENCY = "stagelens_requests_per_second", "stagelens_latency_seconds"


def _matchers(*expressions: str) -> str:
    return _RATE + "{" + ",".join(f'route=~"{expression}"' for expression in expressions) + "}"


def _range(start: float | str, end: float, step: float | str, lookback: str = "5m") -> dict[str, Any]:
    return {"start": start, "end": end, "step": step, "lookback_delta": lookback}


def hostile_queries(now: float) -> Iterator[tuple[str, list[tuple[str, Any]]]]:
    """Yield paths and parameters without end; each round differs, so that no cache helps."""
    all_routes = f'{_LATENCY}{{route=~".+",service_version=~".*",model=~".*"}}'
    for number in itertools.count():
        expressions = [
            _matchers(*(rf"\\pL{{0,90}}\\w{{0,90}}x{number}x{index}" for index in range(150))),
            _matchers(rf"\\pL{{0,4}}x{number}"),
            _matchers(rf"((a{{0,50}}){{0,50}}){{0,{number + 2}}}"),
            _matchers(rf"((a{{0,9}}){{0,9}}){{0,4}}{number}"),
            _matchers("|".join(f"word-{number}-{index}" for index in range(3000))),
            _matchers("(?i)" + "|".join(f"größe-{number}-{index}" for index in range(400))),
            _matchers(rf"[\\pL\\pN]{{1000}}{number}"),
            _matchers(".*" * 400 + str(number)),
            _matchers("k" * 7000 + str(number)),
            _matchers("[" + "".join(chr(0x3000 + 3 * index) for index in range(2000)) + f"]{{9}}{number}"),
            _matchers(f"x{{1{number:06}}}"),
            _matchers("(" * 200 + str(number) + ")" * 200),
            _matchers(*(f"a{index}.{number}" for index in range(280))),
            f'{_RATE}{{route="{"r" * 60_000}{number}"}}',
            "(" * 400 + _RATE + ")" * 400,
            "1" + "+1" * 490,
            "1+(" * 300 + f"{number}" + ")" * 300,
            "+".join([f'{_RATE}{{route=~".+"}}'] * 30),
            f"topk(1000000, {all_routes})",
            f"{all_routes} * on (service_name) group_left (route) ({all_routes} > 1e{number % 300})",
            f"{_LATENCY} / on () group_left () ({_RATE} > 1e9)",
        ]
        for query in expressions:
            yield "query", [("query", query), ("time", now - number % 600), ("lookback_delta", "20m")]
        for query, times in (
            (all_routes, _range(now - 11_000 * 10, now, 10)),
            (f'{_RATE}{{route=~".+"}}', _range(now - 10_900 * 119, now, 119, f"{number % 3 + 1}m")),
            (_RATE, _range(now - 10_999 * 3599, now, 3599, "59s")),
            (f'topk(9e9, {_RATE}{{route=~".*"}})', _range(now - 2700 - number, now, 1)),
            (f"{_RATE} offset -{number}s", _range(0, now, 400 * 86_400, "400d")),
            ("1+(" * 300 + "1" + ")" * 300, _range(now - 10_900 - number, now, 1)),
            (all_routes, _range("9" * 5000, now, 1)),
            (all_routes, _range(now - 600, now, "9" * 5000)),
        ):
            yield "query_range", [("query", query), *times.items()]
        many = [("match[]", f'{_RATE}{{route=~"a{index}.*{number}"}}') for index in range(400)]
        yield "series", many
        yield "labels", many
        yield "series", [("match[]", f'{{__name__=~".+",route=~".*{number}|"}}'), ("start", 0), ("limit", "9" * 5000)]
        yield "label/route/values", [("match[]", f'{{__name__=~".+",route=~".*{number % 10}"}}'), ("start", 0)]


def fill(url: str) -> None:
    """Write requests of the last minutes to many routes."""
    site = Site(url, {})
    site.clock.now = now = int(time.time()) // 60 * 60
    series = [
        Series(f"service-{service}", str(route % 3), route=f"/route/{route}", model=f"model-{route % 5}")
        for service in range(_SERVICES)
        for route in range(_ROUTES)
    ]
    for minute in range(_MINUTES):
        at = now - 60 * (_MINUTES - minute)
        requests = [
            Request({"queue": 10_000_000, "forward": 1_000_000 * (each % 40 + 1)}, at + each % 60, every)
            for each, every in enumerate(series * 12)
        ]
        site.write(requests)
    site.close()


@dataclass
class Outcome:
    """Result of a run: responses by status, the slowest response, and the memory of the process [bytes]."""

    answers: Counter[int] = field(default_factory=Counter[int])
    slowest_seconds: float = 0.0
    before: int = 0
    peak: int = 0
    after: int = 0
    errors: Counter[str] = field(default_factory=Counter[str])


class Up:
    """A running `stagelens up` over a filled store in *folder*."""

    def __init__(self, folder: Path) -> None:
        url = f"sqlite:///{folder}/hostile.db"
        fill(url)
        options = ["--database", url, "--dashboard-port", "0", "--collector-port", "0"]
        self.program = Printing([sys.executable, "-m", "stagelens", "up", *options], cwd=folder)
        self.port = int(self.program.wait_for(r"dashboard +http://[^:]+:(\d+)")[1])

    def get(self, path: str, parameters: list[tuple[str, Any]]) -> tuple[int, bytes]:
        """Send a query as Grafana does, and return status and body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        if path.startswith("label/"):
            connection.request("GET", f"/api/v1/{path}?{urlencode(parameters)}")
        else:
            connection.request("POST", f"/api/v1/{path}", urlencode(parameters), form)
        response = connection.getresponse()
        body = response.read()
        connection.close()
        return response.status, body

    def memory(self, name: str) -> int:
        """Return a line of the status of the process in bytes, such as `VmRSS`."""
        status = Path(f"/proc/{self.program.process.pid}/status").read_text(encoding="utf-8")
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith(f"{name}:"))

    def end(self) -> int:
        """Shut down gracefully, and return the exit code."""
        self.program.process.terminate()
        return self.program.wait()


def attack(up: Up, queries: int, clients: int) -> Outcome:
    """Send *queries* with *clients* at once, and compare the memory before, meanwhile and after."""
    outcome, lock = Outcome(), threading.Lock()
    usual = [("query", _LATENCY), ("lookback_delta", "20m")]
    for _ in range(5):
        assert up.get("query", usual)[0] == 200
    time.sleep(TRIM_SECONDS)
    outcome.before = up.memory("VmRSS")
    waiting = itertools.islice(hostile_queries(time.time()), queries)

    def client() -> None:
        while True:
            with lock:
                path, parameters = next(waiting, ("", []))
            if not path:
                return
            started = time.monotonic()
            status, body = up.get(path, parameters)
            with lock:
                outcome.answers[status] += 1
                outcome.slowest_seconds = max(outcome.slowest_seconds, time.monotonic() - started)
                if status not in (200, 400, 422, 503):
                    outcome.errors[f"{path} {str(parameters)[:200]} {body[:200]!r}"] += 1

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    outcome.peak = up.memory("VmHWM")
    assert up.get("query", usual)[0] == 200
    time.sleep(TRIM_SECONDS)
    outcome.after = up.memory("VmRSS")
    return outcome


def main() -> None:
    """Attack, and print the result."""
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("--queries", type=int, default=1000)
    made.add_argument("--clients", type=int, default=8)
    options = made.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        up = Up(Path(folder))
        started = time.monotonic()
        found = attack(up, options.queries, options.clients)
        memory = ", ".join(f"{name} {getattr(found, name) / MEGABYTE:.0f} MiB" for name in ("before", "peak", "after"))
        print(f"{options.queries} queries in {time.monotonic() - started:.0f} s: {dict(found.answers)}")
        print(f"slowest {found.slowest_seconds:.1f} s; memory {memory}")
        print(*found.errors.most_common(5), sep="\n")
        assert up.end() == 0


if __name__ == "__main__":
    main()
