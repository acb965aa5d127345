"""Limits that CI checks: ratios within one process, because the times of a shared runner vary.

README.md states each ratio with its range in parentheses; a measurement outside of it fails.
"""

from __future__ import annotations

import gzip
import re
import statistics
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import zstandard
from fleet import Fleet, make
from pages.windows import page_costs, with_window

from stagelens.collector.otlp.model import BodyTooLargeError
from stagelens.collector.server.bodies import inflate

from . import micro, service
from .paced import older_collections
from .peers import BARE, OURS, SPANS, set_up
from .server import NONE, OPENTELEMETRY
from .server import OURS as OUR_SERVER

README = Path(__file__).parents[2] / "README.md"
# The rows of the table: the tight loop, a request after a model has run, and all threads of a service.
RANGES = re.findall(r"\d+\S \((\d+) to (\d+)\)", README.read_text(encoding="utf-8"))
ROUNDS = 25
# The overview of 30 days and of 6 hours, of a fleet whose data take seconds to make. Measured: 1.0 to 1.3.
FLEET, WINDOW_ROUNDS, MAX_WINDOW_RATIO = Fleet(services=10, days=31, fine_days=1), 5, 2
# A service: rounds, model, and the least ratio with the work between the requests. Measured: 7.8 and 10, and 4.9 on a loaded machine.
SERVICE_ROUNDS, SERVICE_MODEL, MIN_WHOLE_RATIO = 40, "onnx 1 ms", 2
REQUESTS, RATE = 10_000, 1000
# A body that inflates to fifty times what the collector takes; its peak holds the limit and what is read at once. Measured: 2.1 and 1.7.
ZEROS, LIMIT_BYTES, MAX_PEAK_RATIO = bytes(50_000_000), 1_000_000, 8


def failures(sink: str) -> Iterator[str]:
    """Measure, print each number, and yield a sentence for everything that does not hold."""
    peers = {name: peer for name in (BARE, OURS, SPANS) if (peer := set_up(name, sink)) is not None}
    if SPANS not in peers:
        yield "opentelemetry-sdk or its OTLP exporter is not installed: pip install -e '.[dev]'"
        return
    micro.compare(micro.hot, peers, 2)
    micro.compare(micro.cold, peers, 2)
    in_bursts, whole = _service_ratios(sink)
    ratios = {
        "hot": micro.compare(micro.hot, peers, ROUNDS).ratio(SPANS),
        "cold": micro.compare(micro.cold, peers, ROUNDS).ratio(SPANS),
        "service": in_bursts,
    }
    for (name, ratio), (least, most) in zip(ratios.items(), RANGES, strict=True):
        print(f"{name}: OpenTelemetry costs {ratio:.1f} times as much as we do ({least} to {most} in README.md)")
        if not int(least) <= ratio <= int(most):
            yield f"{name}: OpenTelemetry costs {ratio:.1f} times as much as we do; README.md says {least} to {most}"
    print(f"service, with pauses: OpenTelemetry costs {whole:.1f} times as much as we do (at least {MIN_WHOLE_RATIO})")
    if whole < MIN_WHOLE_RATIO:
        yield f"service, with pauses: OpenTelemetry costs {whole:.1f} times as much as we do; {MIN_WHOLE_RATIO} is held"
    bare, ours = (older_collections(name, sink, REQUESTS, RATE) for name in (BARE, OURS))
    print(f"garbage collections of generation 1 and 2 in {REQUESTS:,} requests: {ours}, bare {bare}")
    if ours > bare:
        yield f"{REQUESTS:,} requests caused {ours - bare} garbage collections of generation 1 or 2; none is held"
    wider = _window_ratio()
    print(f"an overview of 30 days costs {wider:.1f} times one of 6 hours (at most {MAX_WINDOW_RATIO})")
    if wider > MAX_WINDOW_RATIO:
        yield f"an overview of 30 days costs {wider:.1f} times one of 6 hours; at most {MAX_WINDOW_RATIO} is held"
    unsized = zstandard.ZstdCompressor(write_content_size=False).compress(ZEROS)
    for encoding, bomb in (("gzip", gzip.compress(ZEROS)), ("zstd", unsized)):
        times = _peak_bytes(bomb, encoding, LIMIT_BYTES) / LIMIT_BYTES
        print(f"memory: a {encoding} bomb takes {times:.1f} times what a body may have (at most {MAX_PEAK_RATIO})")
        if times > MAX_PEAK_RATIO:
            yield f"a {encoding} bomb takes {times:.1f} times the memory that a body may have; at most {MAX_PEAK_RATIO} is held"


def _window_ratio() -> float:
    """Return how often the server's CPU time for an overview of 6 hours is needed for one of 30 days, at a first visit."""
    with TemporaryDirectory() as folder:
        make(Path(folder), FLEET).close()
        month, hours = (page_costs(Path(folder), with_window("/", window), WINDOW_ROUNDS) for window in ("30d", "6h"))
    return month[0] / hours[0]


def _service_ratios(sink: str) -> tuple[float, float]:
    rows, whole = service.measure((NONE, OUR_SERVER, OPENTELEMETRY), SERVICE_MODEL, sink, SERVICE_ROUNDS)
    theirs, ours = (
        statistics.median(row[name].cpu_ns - row[NONE].cpu_ns for row in rows) for name in (OPENTELEMETRY, OUR_SERVER)
    )
    return theirs / ours, (whole[OPENTELEMETRY] - whole[NONE]) / (whole[OUR_SERVER] - whole[NONE])


def _peak_bytes(body: bytes, encoding: str, limit: int) -> int:
    """Return the most memory that Python held while a body was found to be larger than *limit*."""
    tracemalloc.start()
    try:
        with suppress(BodyTooLargeError):
            inflate(body, encoding, limit)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
