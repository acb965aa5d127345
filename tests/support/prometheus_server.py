"""A real Prometheus: classic histograms written into its own blocks, or what it scrapes, and questions over HTTP.

Native histograms come by scraping alone: neither the text formats nor `promtool` can write them.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import time
import urllib.parse
import urllib.request
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import IO, Any

from tests.support.ports import free_port
from tests.support.raw_requests import Request

HINT = "no Prometheus on this machine; `apt-get install prometheus`, which brings promtool, or `make test-stacks`, which does"
STEP_SECONDS = 10
START_SECONDS = 60


def is_installed() -> bool:
    return shutil.which("prometheus") is not None and shutil.which("promtool") is not None


@dataclass(frozen=True, slots=True)
class Prometheus:
    address: str

    def version(self) -> str:
        return self._get("status/buildinfo")["version"]

    def quantile(self, name: str, quantile: float, at: int, seconds: int) -> float:
        """Return `histogram_quantile` of the histogram *name* over the *seconds* before *at*, as in dashboards."""
        # One step more: the sample it starts from belongs to the window in every version.
        window = f"rate({name}_bucket[{seconds + STEP_SECONDS - 1}s])"
        (found,) = self.query(f"histogram_quantile({quantile}, sum by (le) ({window}))", at)
        return float(found["value"][1])

    def query(self, expression: str, at: float | None = None) -> list[Any]:
        asked = {"query": expression} if at is None else {"query": expression, "time": at}
        return self._get(f"query?{urllib.parse.urlencode(asked)}")["result"]

    def number(self, expression: str, at: float | None = None) -> float | None:
        found = self.query(expression, at)
        return float(found[0]["value"][1]) if found else None

    def _get(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self.address}/api/v1/{path}", timeout=START_SECONDS) as response:
            return json.load(response)["data"]


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"the condition did not come true in {START_SECONDS} seconds"
        time.sleep(0.1)


def scraped(start: int, end: int) -> range:
    """Return when something is scraped from *start* to *end*, both included; in Unix seconds."""
    return range(start, end + 1, STEP_SECONDS)


def write(folder: Path, name: str, bounds: Sequence[float], requests: Sequence[Request], scrapes: range) -> int:
    """Write *requests* as the classic histogram *name* into a block below *folder*."""
    with tempfile.NamedTemporaryFile("w", suffix=".om") as text:
        text.writelines(f"{line}\n" for line in exposition(name, bounds, requests, scrapes))
        text.flush()
        known = set(folder.glob("*/chunks/*"))
        command = ["promtool", "tsdb", "create-blocks-from", "openmetrics", text.name, str(folder)]
        subprocess.run(command, check=True, capture_output=True)
    return sum(path.stat().st_size for path in set(folder.glob("*/chunks/*")) - known)


def exposition(name: str, bounds: Sequence[float], requests: Sequence[Request], scrapes: range) -> Iterator[str]:
    counts = {at: [0] * (len(bounds) + 1) for at in scrapes}
    sums = dict.fromkeys(counts, 0.0)
    for request in requests:
        at = scrapes[(request.at - scrapes.start) // scrapes.step + 1]
        counts[at][bisect_left(bounds, request.seconds)] += 1
        sums[at] += request.seconds
    labels = [*map(repr, bounds), "+Inf"]
    yield f"# TYPE {name} histogram"
    held, total = [0] * len(labels), 0.0
    for at, row in counts.items():
        held = [before + count for before, count in zip(held, row, strict=True)]
        total += sums[at]
        cumulative = list(accumulate(held))
        for label, count in zip(labels, cumulative, strict=True):
            yield f'{name}_bucket{{le="{label}"}} {count} {at}'
        yield f"{name}_count {cumulative[-1]} {at}"
        yield f"{name}_sum {total!r} {at}"
    yield "# EOF"


@contextmanager
def serving(
    folder: Path, configuration: str = "scrape_configs: []\n", flags: Sequence[str] = ()
) -> Generator[Prometheus]:
    address = f"127.0.0.1:{free_port()}"
    file = folder / "prometheus.yml"
    file.write_text(configuration)
    options = (f"--config.file={file}", f"--storage.tsdb.path={folder}", f"--web.listen-address={address}", *flags)
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(["prometheus", *options], stdout=log, stderr=log)
        try:
            _await(process, f"http://{address}/-/ready", log)
            yield Prometheus(f"http://{address}")
        finally:
            process.terminate()
            process.wait(START_SECONDS)


def _await(process: subprocess.Popen[bytes], url: str, log: IO[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            urllib.request.urlopen(url, timeout=1).close()
        except OSError as error:
            if process.poll() is not None or time.monotonic() > deadline:
                log.seek(0)
                msg = f"Prometheus did not start; it printed:\n{log.read().decode(errors='replace')}"
                raise RuntimeError(msg) from error
            time.sleep(0.05)
        else:
            return
