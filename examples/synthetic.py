"""Fill a database with made-up traffic, to look at the dashboard without a service: `python examples/synthetic.py demo.db`.

Three services with lognormal stages, two routes each, some errors, and a second version of the first service whose
preprocess has a slow tail, in `serve:resize`. The same arguments make the same data.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stagelens.core import names
from stagelens.core.code_stack import CodeFrame, stack_key
from stagelens.core.histogram import SCALE, Histogram
from stagelens.core.histogram import TOKEN_COUNTS as TOKEN_BANDS
from stagelens.core.names import REQUEST_DURATION, STAGE_DURATION, STAGE_TIME, STATUS_ERROR, STATUS_OK
from stagelens.store import Batch, Point, RetainedTrace, Series, Store

BUCKET_SECONDS = 10
NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Shape:
    """How long a stage takes: lognormal, and now and then much longer.

    Args:
        median_ms: Of the usual case. [milliseconds]
        sigma: Of its logarithm.
        slow_share: How many requests are slow in this stage. [0..1]
        slow_factor: How many times longer those take.
    """

    median_ms: float
    sigma: float = 0.25
    slow_share: float = 0.0
    slow_factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Stream:
    """How a service answers token by token.

    Args:
        after: Stages that come after the first token.
        prefill_tokens_ms: Tokens of a prompt that are read in a millisecond.
        decode_ms: From one token to the next while one request decodes. [milliseconds]
        crowding: How much slower each further request makes it. [ratio]
    """

    after: Sequence[str] = ("decode", "serialize")
    prefill_tokens_ms: float = 9.0
    decode_ms: float = 9.0
    crowding: float = 0.16


@dataclass(frozen=True, slots=True)
class Service:
    """One made-up service.

    Args:
        name: Its name.
        model: Its model.
        rate: Requests a second, at noon of its daily rhythm.
        routes: Its routes.
        stages: Shape by stage.
        changed: Shapes that differ in version 2.
        error_share: How many requests fail. [0..1]
        stream: How it streams its answers, if it does.
        code: Functions by stage, outermost first, in which the profiler sees its requests.
    """

    name: str
    model: str
    rate: float
    routes: Sequence[str]
    stages: Mapping[str, Shape]
    changed: Mapping[str, Shape] = field(default_factory=dict[str, Shape])
    error_share: float = 0.002
    stream: Stream | None = None
    code: Mapping[str, Sequence[CodeFrame]] = field(default_factory=dict[str, Sequence[CodeFrame]])


_ENDPOINT = (
    CodeFrame(
        "uvicorn.protocols.http.httptools_impl",
        "RequestResponseCycle.run_asgi",
        "uvicorn/protocols/http/httptools_impl.py",
        401,
    ),
    CodeFrame("serve", "predict", "serve.py", 30),
)
_RESIZE = (CodeFrame("serve", "resize", "serve.py", 41), CodeFrame("PIL.Image", "Image.resize", "PIL/Image.py", 2261))
# The time of a preprocess beyond this is in `serve:resize`. [nanoseconds]
_RESIZE_BEYOND = 12_000_000
# Every twentieth request is sampled, and of the others those slower than this quantile of their bucket.
_SAMPLED_EACH, _SAMPLED_ABOVE = 20, 0.9

SERVICES = (
    Service(
        "vision-api",
        "resnet50",
        12.0,
        ("/v1/classify", "/v1/detect"),
        {
            "forward": Shape(24, 0.18),
            "h2d": Shape(1.6, 0.3),
            "preprocess": Shape(9, 0.35),
            "postprocess": Shape(2.2, 0.3),
            "serialize": Shape(1.1, 0.4),
            "network": Shape(2.5, 0.7),
            "queue": Shape(3, 0.9, 0.03, 12),
            "overhead": Shape(0.8, 0.3),
        },
        {"preprocess": Shape(9.5, 0.35, 0.04, 16)},
        code={
            "preprocess": (*_ENDPOINT, CodeFrame("serve", "prepare", "serve.py", 36)),
            "forward": (
                *_ENDPOINT,
                CodeFrame("torch.nn.modules.module", "Module._call_impl", "torch/nn/modules/module.py", 1784),
            ),
            "postprocess": (*_ENDPOINT, CodeFrame("serve", "describe", "serve.py", 52)),
            "overhead": _ENDPOINT[:1],
        },
    ),
    Service(
        "chat-llm",
        "llama-3-8b",
        3.0,
        ("/v1/chat/completions",),
        {
            "prefill": Shape(85, 0.5),
            "decode": Shape(900, 0.6),
            "tokenize": Shape(3, 0.3),
            "serialize": Shape(1.5, 0.3),
            "network": Shape(6, 0.8),
            "queue": Shape(30, 1.1, 0.05, 10),
            "overhead": Shape(2, 0.4),
        },
        error_share=0.006,
        stream=Stream(),
    ),
    Service(
        "fraud-score",
        "xgb-fraud",
        20.0,
        ("/score", "/batch"),
        {
            "forward": Shape(2.1, 0.2),
            "dependency": Shape(6, 0.5, 0.01, 9),
            "preprocess": Shape(0.8, 0.3),
            "serialize": Shape(0.4, 0.3),
            "network": Shape(0.9, 0.6),
            "load": Shape(0.02, 0.2, 0.002, 20_000),
            "overhead": Shape(0.3, 0.3),
        },
        error_share=0.0008,
    ),
)


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests of one series in one bucket.

    Args:
        stages: The names of the stages.
        spent: Time by request and stage; shape (n, stages). [nanoseconds]
    """

    stages: tuple[str, ...]
    spent: NDArray[np.int64]

    @property
    def wall(self) -> NDArray[np.int64]:
        return self.spent.sum(axis=1)

    @property
    def dominant(self) -> NDArray[np.int64]:
        return self.spent.argmax(axis=1)


class TraceId(NamedTuple):
    """Which request, and when it began, in Unix nanoseconds."""

    trace_id: str
    span_id: str
    started_ns: int


def draw(shapes: Mapping[str, Shape], n: int, random: np.random.Generator) -> Requests:
    columns = [
        np.exp(random.normal(np.log(shape.median_ms * 1e6), shape.sigma, n))
        * np.where(random.random(n) < shape.slow_share, shape.slow_factor, 1.0)
        for shape in shapes.values()
    ]
    return Requests(tuple(shapes), np.column_stack(columns).astype(np.int64))


def points(series: Series, at: int, requests: Requests) -> Iterator[Point]:
    wall, dominant = requests.wall, requests.dominant
    bucket = _bucket(wall)
    for place, stage in enumerate(requests.stages):
        mine = dominant == place
        if mine.any():
            yield Point(series, REQUEST_DURATION, stage, at, _histogram(bucket[mine], wall[mine].sum() / NS))
        spent = requests.spent[:, place]
        yield Point(series, STAGE_DURATION, stage, at, _histogram(_bucket(spent), spent.sum() / NS))
        yield Point(series, STAGE_TIME, stage, at, _histogram(bucket, 0.0, spent // 1000))


def stream_points(
    series: Series, at: int, requests: Requests, stream: Stream, random: np.random.Generator
) -> Iterator[Point]:
    before = [place for place, stage in enumerate(requests.stages) if stage not in stream.after]
    until = requests.spent[:, before]
    decode = requests.spent[:, requests.stages.index("decode")] / 1e6
    prefill = requests.spent[:, requests.stages.index("prefill")] / 1e6
    together = decode.sum() / (BUCKET_SECONDS * 1000)
    noise = np.exp(random.normal(0, 0.12, (3, len(decode))))
    pace_ms = stream.decode_ms * (1 + stream.crowding * together) * noise[0]
    put_out = np.maximum(decode / pace_ms, 1).astype(np.int64) + 1
    taken_in = np.maximum(prefill * stream.prefill_tokens_ms * noise[1], 1).astype(np.int64)
    # Now and then an answer stands still: the batch makes room for a long prompt.
    gap_ms = pace_ms * (2 + 3 * noise[2]) + np.where(random.random(len(decode)) < 0.02, 400, 0)
    first, pace, gap = (each.astype(np.int64) for each in (until.sum(axis=1), pace_ms * 1e6, gap_ms * 1e6))
    timed = [(names.FIRST_TOKEN, first), (names.OUTPUT_TOKEN, pace), (names.STREAM_GAP, gap)]
    for metric, spent in timed:
        yield Point(series, metric, names.BY_GENERATE, at, _histogram(_bucket(spent), spent.sum() / NS))
    for place, stage in zip(before, until.T, strict=True):
        yield Point(
            series, names.FIRST_TOKEN_TIME, requests.stages[place], at, _histogram(_bucket(first), 0.0, stage // 1000)
        )
    for kind, number in ((names.TOKENS_IN, taken_in), (names.TOKENS_OUT, put_out)):
        yield Point(series, names.TOKENS, kind, at, _histogram(_bucket(number * NS), number.sum()))
    yield from _by_band(series, at, names.FIRST_TOKEN_BY_INPUT, first, taken_in)
    yield from _by_band(series, at, names.OUTPUT_TOKEN_BY_OUTPUT, pace, put_out)


def profile_points(
    series: Series, at: int, requests: Requests, code: Mapping[str, Sequence[CodeFrame]]
) -> Iterator[Point]:
    wall = requests.wall
    sampled = (wall > np.quantile(wall, _SAMPLED_ABOVE)) | (np.arange(len(wall)) % _SAMPLED_EACH == 0)
    bucket = _bucket(wall)
    for key, spent in _stacks(requests, code).items():
        micros = np.where(sampled, spent // 1000, 0)
        if micros.any():
            yield Point(series, names.PROFILE_TIME, key, at, _histogram(bucket, 0.0, micros))


def _stacks(requests: Requests, code: Mapping[str, Sequence[CodeFrame]]) -> dict[str, NDArray[np.int64]]:
    """Return the nanoseconds of each request by stage and stack; those of a stage add up to it."""
    found: dict[str, NDArray[np.int64]] = {}
    for stage, frames in code.items():
        spent = requests.spent[:, requests.stages.index(stage)]
        beyond = np.maximum(spent - _RESIZE_BEYOND, 0) if stage == "preprocess" else np.zeros_like(spent)
        found[stack_key(stage, frames)] = spent - beyond
        if beyond.any():
            found[stack_key(stage, (*frames, *_RESIZE))] = beyond
    return found


def _by_band(
    series: Series, at: int, metric: str, spent: NDArray[np.int64], tokens: NDArray[np.int64]
) -> Iterator[Point]:
    bands = np.array([TOKEN_BANDS.bucket_of(int(token)) for token in tokens])
    for band in sorted(set(bands.tolist())):
        mine = spent[bands == band]
        yield Point(series, metric, band, at, _histogram(_bucket(mine), mine.sum() / NS))


def _bucket(nanoseconds: NDArray[np.int64]) -> NDArray[np.int64]:
    return (np.ceil(np.log2(np.maximum(nanoseconds, 1) / NS) * 2**SCALE) - 1).astype(np.int64)


def _histogram(bucket: NDArray[np.int64], total: float, weight: NDArray[np.int64] | None = None) -> Histogram:
    index, place = np.unique(bucket, return_inverse=True)
    amount = np.zeros(len(index), np.int64)
    np.add.at(amount, place, 1 if weight is None else weight)
    filled = {key: count for key, count in zip(index.tolist(), amount.tolist(), strict=True) if count}
    return Histogram(SCALE, filled, 0, float(total))


def kept(
    series: Series,
    at: int,
    requests: Requests,
    random: np.random.Generator,
    code: Mapping[str, Sequence[CodeFrame]] = MappingProxyType({}),
) -> Iterator[RetainedTrace]:
    """Yield the traces a tail sampler keeps: the slowest, and one of the others now and then."""
    slowest = int(requests.wall.argmax())
    because = "error" if series.status == STATUS_ERROR else "slow"
    chosen = {slowest: because}
    if random.random() < 0.2:
        chosen.setdefault(int(random.integers(len(requests.wall))), "uniform")
    for row, reason in chosen.items():
        started = at * NS + int(random.integers(BUCKET_SECONDS * NS))
        made = _trace(series, requests, row, reason, TraceId(random.bytes(16).hex(), random.bytes(8).hex(), started))
        lines = (f"{spent[row] // 1000} {key}" for key, spent in _stacks(requests, code).items() if spent[row])
        yield replace(made, attributes={**made.attributes, names.PROFILE: "\n".join(lines)}) if code else made


def _trace(series: Series, requests: Requests, row: int, because: str, identity: TraceId) -> RetainedTrace:
    spent = dict(zip(requests.stages, requests.spent[row].tolist(), strict=True))
    order = [stage for stage in ("network", "queue", "serialize") if stage in spent]
    order += [stage for stage in spent if stage not in (*order, "overhead")]
    spans: list[dict[str, object]] = []
    start = 0
    for stage in order:
        spans.append({"name": stage, "stage": stage, "start_ns": start, "duration_ns": spent[stage], "attributes": {}})
        start += spent[stage]
    return RetainedTrace(
        trace_id=identity.trace_id,
        span_id=identity.span_id,
        series=series,
        started_ns=identity.started_ns,
        duration_ns=int(requests.wall[row]),
        because=because,
        dominant=requests.stages[int(requests.dominant[row])],
        stages_ns=spent,
        spans=spans,
        attributes={"http.route": series.route, "http.response.status_code": 500 if because == "error" else 200},
    )


def batch(service: Service, at: int, *, second_version: bool, seed: int = 0) -> Batch:
    random = np.random.default_rng([seed, at, *service.name.encode()])
    shapes = {**service.stages, **(service.changed if second_version else {})}
    day = 1 + 0.3 * np.sin(2 * np.pi * (at % 86_400) / 86_400)
    made: list[Point] = []
    traces: list[RetainedTrace] = []
    for route in service.routes:
        for status, share in ((STATUS_OK, 1 - service.error_share), (STATUS_ERROR, service.error_share)):
            n = int(random.poisson(service.rate * BUCKET_SECONDS * day * share / len(service.routes)))
            if n == 0:
                continue
            version = "2.0.0" if second_version and service.changed else "1.0.0"
            series = Series(service.name, version, "demo", service.model, "1", route, "cuda:0", status)
            requests = draw(shapes, n, random)
            made += points(series, at, requests)
            if service.stream:
                # Of its own, so that the requests stay what they are.
                own = np.random.default_rng([seed + 1, at, *service.name.encode(), *status.encode()])
                made += stream_points(series, at, requests, service.stream, own)
            made += profile_points(series, at, requests, service.code)
            traces += kept(series, at, requests, random, service.code)
    return Batch(f"synthetic-{service.name}:{at}", made, traces, 0, f"synthetic-{service.name}")


def fill(
    store: Store,
    start: datetime,
    end: datetime,
    *,
    services: Sequence[Service] = SERVICES,
    released: datetime | None = None,
    seed: int = 0,
) -> None:
    """Write the traffic of `[start, end)`.

    Args:
        store: Where to.
        start: Aware.
        end: Aware.
        services: Whose traffic.
        released: When version 2 replaces version 1; two thirds of the way by default.
        seed: Another one makes other data.
    """
    first, last = (int(at.timestamp()) // BUCKET_SECONDS * BUCKET_SECONDS for at in (start, end))
    change = int((released or start + (end - start) * 2 / 3).timestamp())
    waiting: list[Batch] = []
    for at in range(first, last, BUCKET_SECONDS):
        waiting += [batch(service, at, second_version=at >= change, seed=seed) for service in services]
        if len(waiting) >= 200:
            store.write(waiting)
            waiting = []
    store.write(waiting)
    store.maintain()


def main() -> None:
    store = Store.open(f"sqlite:///{sys.argv[1]}")
    now = datetime.now(UTC)
    fill(store, now - timedelta(hours=2), now)
    print(f"filled {sys.argv[1]}: {store.read.state().size_bytes / 1e6:.1f} MB")
    store.close()


if __name__ == "__main__":
    main()
