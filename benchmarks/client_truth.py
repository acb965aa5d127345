"""Compare the percentiles of vLLM in Stagelens with those of an independent client.

    python benchmarks/client_truth.py [--requests N] [--rate R] [--database FILE] [--gate]

vLLM serves a small model of random weights on the CPU. guidellm, a load generator of the vLLM project, streams completions from it, at a
steady mean rate with random gaps, and records every request. Needs `make vllm truth`.

The collector receives the spans of vLLM and scrapes its `/metrics`. guidellm runs under `stagelens run`, so that Stagelens also measures
at the client. The values of Stagelens are read from the API of its dashboard, and those of stages from its database.

First table: pairs of one definition. The exact value is that at the nearest rank of guidellm's records:

- client: from the call of guidellm's backend to its end, to the first content, and from there to the last content by token. The first
  two start before what guidellm reports as latency and time to first token: it builds the HTTP request before it starts its clock.
- server: queue, prefill and decode, as vLLM reports them in the last part of each response (`--enable-per-request-metrics`), and as it
  reports them in its spans.

Goal: each of these percentiles within 2 %, over equal numbers of requests, and in the second table the intervals of the metrics contain the
values of the spans, which have the same clock. `--gate` exits with 1 otherwise.

Second table: percentiles as guidellm reports them, beside those of other definitions.

- guidellm weights its times per token by the number of tokens. It adds shares of requests up as floats, so that p90 to p99 may be those of
  the next slower request.
- vLLM starts the clock of its spans and metrics before it tokenizes, after it has parsed the HTTP request. It stops it when its front end
  receives a token from the engine, before it sends it. `/metrics` has fixed buckets, so its percentiles are intervals.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
from truth.processes import KEEP, free_port, running, under_stagelens
from truth.unexplained import next_bucket

from stagelens.client import Client, connect
from stagelens.core.histogram import rank_of
from stagelens.store import Selection, Store

# The tests wait for servers the same way.
sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.slow_replicas import wait_until_up

ROOT = Path(__file__).parents[1]
VLLM, GUIDELLM = ROOT / ".venv" / "vllm", ROOT / ".venv" / "truth"
REQUESTS, RATE, WARM_UP = 400, 3.0, 12
QUANTILES = (0.5, 0.9, 0.95, 0.99)
GOAL, UNITS = 0.02, {"µs": 1e-6, "ms": 1e-3, "s": 1.0}
START_SECONDS, WAIT_SECONDS = 300.0, 60.0
# Services in Stagelens: guidellm, vLLM by its spans, vLLM by its metrics.
CLIENT, SPANS, METRICS = "guidellm", "chat", "chat-metrics"
# Wide enough for a prefill and a decode that are longer than what the front end of vLLM takes.
MODEL = {"num_hidden_layers": 8, "hidden_size": 256, "intermediate_size": 512}
MODEL |= {"num_attention_heads": 4, "num_key_value_heads": 4}
# Words of the tokenizer, and the tokens of prompts and responses, of which both together fit the 256 of the model.
WORDS, PROMPT_TOKENS, OUTPUT_TOKENS = 509, (60, 180), (16, 48)

Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Pair:
    """One time, as recorded for each request and as Stagelens has it.

    Args:
        name: Name of the time.
        exact: Function that returns the time in the record of a request. [seconds]
        service: Service in Stagelens.
        measure: Measure of the query `tokens`, or stage of the server; "" for the latency.
    """

    name: str
    exact: Callable[[Record], float]
    service: str
    measure: str = ""


def _timings(record: Record, start: str, end: str) -> float:
    timings = record["info"]["timings"]
    return timings[end] - timings[start]


def _per_token(record: Record) -> float:
    return _timings(record, "first_token_iteration", "last_token_iteration") / (record["output_tokens"] - 1)


def _reported(name: str) -> Callable[[Record], float]:
    return lambda record: record["response_metrics"][name] / 1e3


PAIRS = (
    Pair("client: latency", lambda record: _timings(record, "resolve_start", "resolve_end"), CLIENT),
    Pair(
        "client: first token",
        lambda record: _timings(record, "resolve_start", "first_token_iteration"),
        CLIENT,
        "first_token",
    ),
    Pair("client: per token", _per_token, CLIENT, "output_token"),
    Pair("server: queue", _reported("queue_time_ms"), SPANS, "queue"),
    Pair("server: prefill", _reported("time_to_first_token_ms"), SPANS, "prefill"),
    Pair("server: decode", _reported("generation_time_ms"), SPANS, "decode"),
)
# Metric of guidellm, its unit in seconds, measure of the query `tokens`, row of the page of engines.
SIDE_BY_SIDE = {
    "latency": ("request_latency", 1.0, "", "Request"),
    "first token": ("time_to_first_token_ms", 1e-3, "first_token", "First token measured by the engine, per request"),
    "per token": ("inter_token_latency_ms", 1e-3, "output_token", "Output token measured by the engine, per request"),
}


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=REQUESTS, help=f"number of requests (default: {REQUESTS})")
    parser.add_argument("--rate", type=float, default=RATE, help=f"mean rate in requests/s (default: {RATE})")
    parser.add_argument("--database", type=Path, help="SQLite file of Stagelens to keep (default: a temporary one)")
    parser.add_argument("--gate", action="store_true", help="exit with 1 if a percentile misses the goal")
    return parser.parse_args()


@contextlib.contextmanager
def servers(folder: Path, database: Path) -> Generator[tuple[str, str, Client]]:
    """Run Stagelens and vLLM; give the addresses of the collector and of vLLM, and a client of the dashboard."""
    serving, collecting, showing = free_port(), free_port(), free_port()
    collector, address = f"http://127.0.0.1:{collecting}", f"http://127.0.0.1:{serving}"
    file = folder / "collector.yaml"
    target = {"url": f"{address}/metrics", "service": METRICS, "every": "1s"}
    file.write_text(json.dumps({"scrape": {"targets": [target]}}))
    up = [sys.executable, "-m", "stagelens", "up", "--database", f"sqlite:///{database}"]
    up += ["--collector-port", str(collecting), "--collector-grpc-port", "off", "--collector-config", str(file)]
    up += ["--dashboard-port", str(showing)]
    # In the folder, because it writes the model there.
    vllm = ["env", "-C", str(folder), sys.executable, str(ROOT / "tests" / "docs" / "shims" / "vllm"), "serve", "tiny"]
    vllm += ["--port", str(serving), "--otlp-traces-endpoint", f"{collector}/v1/traces"]
    vllm += ["--enable-per-request-metrics", "--load-format", "dummy", "--hf-overrides", json.dumps(MODEL)]
    settings = {
        "PYTHONPATH": str(VLLM),
        "OTEL_SERVICE_NAME": SPANS,
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
    }
    with running(up, showing, {}), running(vllm, serving, settings):
        # vLLM listens before it is ready.
        wait_until_up(f"{address}/health", START_SECONDS)
        with connect(f"http://127.0.0.1:{showing}") as client:
            yield collector, address, client


def warm_up(address: str) -> None:
    """Send requests that are not counted."""
    body = {"model": "tiny", "prompt": "w1 w2 w3 " * 20, "max_tokens": 16, "ignore_eos": True}
    for _ in range(WARM_UP):
        httpx.post(f"{address}/v1/completions", json=body, timeout=60).raise_for_status()


def generate(folder: Path, collector: str, address: str, options: argparse.Namespace) -> Record:
    """Run guidellm under `stagelens run`; return its benchmark as it exports it."""
    rng, data, exported = random.Random(1), folder / "prompts.jsonl", folder / "exported.json"
    prompts = (
        {
            "prompt": " ".join(f"w{rng.randrange(WORDS)}" for _ in range(rng.randint(*PROMPT_TOKENS))),
            "output_tokens_count": rng.randint(*OUTPUT_TOKENS),
        }
        for _ in range(options.requests)
    )
    data.write_text("\n".join(map(json.dumps, prompts)))
    given = {
        "backend": f"kind=openai_http,target={address},model=tiny,request_format=/v1/completions,http2=false",
        "profile": f"kind=poisson,rate={options.rate}",
        "constraint": f"kind=max_requests,count={options.requests}",
        "data": f"kind=json_file,path={data}",
        "tokenizer": f"kind=hf_auto,model={folder / 'model-of-random-weights'}",
        "output": f"kind=json,path={exported}",
    }
    words = [word for key, value in given.items() for word in (f"--{key}", value)]
    script = str(ROOT / "benchmarks" / "services" / "guidellm_client.py")
    settings = {
        "PYTHONPATH": os.pathsep.join([str(GUIDELLM), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "OTEL_SERVICE_NAME": CLIENT,
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector,
        "GUIDELLM__MAX_WORKER_PROCESSES": "1",
        # Seconds in which its worker starts; later than that, the first requests would come all at once.
        "GUIDELLM__SCHEDULER_START_DELAY_NON_DISTRIBUTED": "20",
        "GUIDELLM__LOGGING__CONSOLE_LOG_LEVEL": "ERROR",
        "HF_HUB_OFFLINE": "1",
        **KEEP,
    }
    command = under_stagelens([script, "run", "--disable-console", *words], 0)
    subprocess.run(command, cwd=folder, env=os.environ | settings, check=True)
    return json.loads(exported.read_text())["benchmarks"][0]


def wait_for(client: Client, since: datetime, requests: int) -> None:
    """Wait until Stagelens has all requests at the client and of both services of vLLM.

    Raises:
        RuntimeError: They did not arrive in time.
    """
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        found = {service: client.latency(service, start=since).attrs["requests"] for service in (CLIENT, SPANS)}
        found[METRICS] = int(engine(client, since).get("Request", {}).get("Count", 0))
        if set(found.values()) == {requests}:
            return
        if time.monotonic() > deadline:
            msg = f"not {requests} requests everywhere: {found}"
            raise RuntimeError(msg)
        time.sleep(1)


def engine(client: Client, since: datetime) -> dict[str, Mapping[str, str]]:
    """Return the times of the page of engines by row, as texts."""
    tables = {each["name"]: each for each in client.get("view", path="/engines", start=since)["tables"]}
    found = tables.get(f"Times of {METRICS} · tiny", {"head": ["Time"], "rows": []})
    return {row[0]: dict(zip(found["head"], row, strict=True)) for row in found["rows"]}


def measured(client: Client, since: datetime, pair: Pair, database: Path) -> Mapping[float, float]:
    """Return the percentiles of the time of *pair* in Stagelens, in seconds."""
    if pair.service == SPANS:
        with contextlib.closing(Store.open(f"sqlite:///{database}")) as store:
            every = Selection(since, datetime.now(UTC), service=pair.service)
            counted = store.read.stage_latency(every)[pair.measure]
        return {each: estimate.value for each in QUANTILES if (estimate := counted.quantile(each))}
    return percentiles(client, since, pair.service, pair.measure)


def percentiles(client: Client, since: datetime, service: str, measure: str) -> Mapping[float, float]:
    """Return the percentiles of the latency, or of a *measure* of the query `tokens`, in seconds."""
    if measure:
        frame = client.tokens(service, start=since, percentiles=QUANTILES)
        frame = frame[frame["measure"] == measure]
    else:
        frame = client.latency(service, start=since, percentiles=QUANTILES)
    return dict(zip(frame["percentile"], frame["value_seconds"], strict=True))


def show_pairs(client: Client, since: datetime, records: Sequence[Record], database: Path) -> bool:
    """Print the first table, and say whether each percentile meets the goal."""
    good = True
    print(f"\n| one definition, {len(records)} requests | percentile | exact [ms] | Stagelens [ms] | difference |")
    print("|---|---|---|---|---|")
    for pair in PAIRS:
        exact, ours = [pair.exact(each) for each in records], measured(client, since, pair, database)
        for quantile in QUANTILES:
            value = sorted(exact)[rank_of(quantile, len(exact)) - 1]
            error = ours[quantile] / value - 1
            good = good and abs(error) <= GOAL
            cells = (pair.name, f"p{quantile * 100:g}", f"{value * 1e3:.3f}", f"{ours[quantile] * 1e3:.3f}")
            print(f"| {' | '.join(cells)} | {error * 100:+.1f} % |{'' if abs(error) <= GOAL else ' MISSED'}")
    return good


def show_side_by_side(client: Client, since: datetime, metrics: Record) -> bool:
    """Print the second table, and say whether the intervals of the metrics contain the values of the spans."""
    good, rows = True, engine(client, since)
    print(
        "\n| time | percentile | guidellm's report [ms] | at the client [ms] | spans of vLLM [ms] | `/metrics` of vLLM |"
    )
    print("|---|---|---|---|---|---|")
    for name, (metric, unit, measure, row) in SIDE_BY_SIDE.items():
        ours, spans = (percentiles(client, since, service, measure) for service in (CLIENT, SPANS))
        for quantile in QUANTILES:
            percentile = f"p{quantile * 100:g}"
            theirs = metrics[metric]["successful"]["percentiles"][percentile] * unit
            values = (theirs, ours[quantile], spans[quantile])
            interval = rows[row].get(percentile, "")
            # The metric of the time per token is of the engine, that of the spans of its front end.
            contains = name == "per token" or is_within(spans[quantile], interval)
            good = good and contains
            cells = (name, percentile, *(f"{each * 1e3:.2f}" for each in values), interval)
            print(f"| {' | '.join(cells)} |{'' if contains else ' MISSED'}")
    return good


def is_within(value: float, interval: str) -> bool:
    """Return whether *value*, of an error up to 1.1 %, may lie within *interval* as the page writes it, such as `300 ms\u2013500 ms`.

    >>> is_within(0.4, "300 ms\u2013500 ms"), is_within(0.4, "up to 300 ms"), is_within(0.4, "\u2013")
    (True, False, True)
    """
    bounds = [float(number) * UNITS[unit] for number, unit in re.findall(r"([0-9.]+)\s(µs|ms|s)", interval)]
    if not bounds:
        return True
    return (bounds[0] if len(bounds) > 1 else 0.0) / 1.011 <= value <= bounds[-1] * 1.011


def main() -> int:
    """Measure and print."""
    options = arguments()
    if missing := [each.name for each in (VLLM, GUIDELLM) if not each.is_dir()]:
        print(f"not installed; run: make {' '.join(missing)}")
        return 1
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        database = (options.database or folder / "stagelens.db").absolute()
        with servers(folder, database) as (collector, address, client):
            warm_up(address)
            since = next_bucket()
            benchmark = generate(folder, collector, address, options)
            records = benchmark["requests"]["successful"]
            wait_for(client, since, len(records))
            good = show_pairs(client, since, records, database)
            good = show_side_by_side(client, since, benchmark["metrics"]) and good
    print(f"\n{'all goals are met' if good else 'MISSED'}, requests from {since:%Y-%m-%dT%H:%M:%SZ}")
    return 1 if options.gate and not good else 0


if __name__ == "__main__":
    sys.exit(main())
