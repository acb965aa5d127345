"""Compare the percentiles of vLLM in Stagelens with those of an independent client.

    python benchmarks/client_truth.py [--requests N] [--rate R] [--database FILE] [--gate]

vLLM serves a small model of random weights on the CPU. guidellm, a load generator of the vLLM project, streams completions from it, at a
steady mean rate with random gaps, and records every request. Needs `make vllm truth`.

The collector receives the spans of vLLM. guidellm runs under `stagelens run`, so that Stagelens also measures at the client. The exact
value is that at the nearest rank of guidellm's records, of the same definition:

- client: from the call of guidellm's backend to its end, to the first content, and from there to the last content by token. The first
  two start before what guidellm reports as latency and time to first token: it builds the HTTP request before it starts its clock.
- server: queue, prefill and decode, as vLLM reports them in the last part of each response (`--enable-per-request-metrics`), and as it
  reports them in its spans.

Goal: each of these percentiles within 2 %, over equal numbers of requests. `--gate` exits with 1 otherwise.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
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
from processes import free_port, running, under_stagelens

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
GOAL = 0.02
START_SECONDS, WAIT_SECONDS, BUCKET_SECONDS = 300.0, 60.0, 10
# Services in Stagelens: guidellm, and vLLM by its spans.
CLIENT, SPANS = "guidellm", "chat"
# Wide enough for a prefill and a decode that are longer than what the front end of vLLM takes.
_HEADS = {"num_attention_heads": 4, "num_key_value_heads": 4}
MODEL = {"num_hidden_layers": 8, "hidden_size": 256, "intermediate_size": 512} | _HEADS
# Words of the tokenizer, and the tokens of prompts and responses, of which both together fit the 256 of the model.
WORDS, PROMPT_TOKENS, OUTPUT_TOKENS = 509, (60, 180), (16, 48)

Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Pair:
    """One time: *exact* returns it in the record of a request, *measure* is that of the query `tokens`, or a stage; "" for the latency."""

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


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=REQUESTS, help=f"number of requests (default: {REQUESTS})")
    parser.add_argument("--rate", type=float, default=RATE, help=f"mean rate in requests/s (default: {RATE})")
    parser.add_argument("--database", type=Path, help="SQLite file of Stagelens to keep (default: a temporary one)")
    parser.add_argument("--gate", action="store_true", help="exit with 1 if a percentile misses the goal")
    return parser.parse_args()


@contextlib.contextmanager
def servers(folder: Path, database: Path) -> Generator[tuple[str, str, Client]]:
    serving, collecting, showing = free_port(), free_port(), free_port()
    collector, address = f"http://127.0.0.1:{collecting}", f"http://127.0.0.1:{serving}"
    up = [sys.executable, "-m", "stagelens", "up", "--database", f"sqlite:///{database}"]
    up += ["--collector-port", str(collecting), "--collector-grpc-port", "off"]
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
    body = {"model": "tiny", "prompt": "w1 w2 w3 " * 20, "max_tokens": 16, "ignore_eos": True}
    for _ in range(WARM_UP):
        httpx.post(f"{address}/v1/completions", json=body, timeout=60).raise_for_status()


def generate(folder: Path, collector: str, address: str, options: argparse.Namespace) -> Record:
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
        "STAGELENS_EXPORT_INTERVAL": "250ms",
        "STAGELENS_OVERHEAD_BUDGET": "none",
    }
    command = under_stagelens([script, "run", "--disable-console", *words])
    subprocess.run(command, cwd=folder, env=os.environ | settings, check=True)
    return json.loads(exported.read_text())["benchmarks"][0]


def next_bucket() -> datetime:
    """Wait for the start of a bucket of the store, when all that came before has been exported, and return it."""
    begin = math.ceil((time.time() + 2) / BUCKET_SECONDS) * BUCKET_SECONDS
    time.sleep(begin - time.time())
    return datetime.fromtimestamp(begin, UTC)


def wait_for(client: Client, since: datetime, requests: int) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        found = {service: client.latency(service, start=since).attrs["requests"] for service in (CLIENT, SPANS)}
        if set(found.values()) == {requests}:
            return
        if time.monotonic() > deadline:
            msg = f"not {requests} requests everywhere: {found}"
            raise RuntimeError(msg)
        time.sleep(1)


def measured(client: Client, since: datetime, pair: Pair, database: Path) -> Mapping[float, float]:
    if pair.service == SPANS:
        with contextlib.closing(Store.open(f"sqlite:///{database}")) as store:
            every = Selection(since, datetime.now(UTC), service=pair.service)
            counted = store.read.stage_latency(every)[pair.measure]
        return {each: estimate.value for each in QUANTILES if (estimate := counted.quantile(each))}
    return percentiles(client, since, pair.service, pair.measure)


def percentiles(client: Client, since: datetime, service: str, measure: str) -> Mapping[float, float]:
    if measure:
        frame = client.tokens(service, start=since, percentiles=QUANTILES)
        frame = frame[frame["measure"] == measure]
    else:
        frame = client.latency(service, start=since, percentiles=QUANTILES)
    return dict(zip(frame["percentile"], frame["value_seconds"], strict=True))


def show_pairs(client: Client, since: datetime, records: Sequence[Record], database: Path) -> bool:
    good = True
    print(f"\n| one definition, {len(records)} requests | percentile | exact [ms] | Stagelens [ms] | difference |")
    print("|---|---|---|---|---|")
    for pair in PAIRS:
        exact, ours = [pair.exact(record) for record in records], measured(client, since, pair, database)
        for quantile in QUANTILES:
            value = sorted(exact)[rank_of(quantile, len(exact)) - 1]
            error = ours[quantile] / value - 1
            good = good and abs(error) <= GOAL
            cells = (pair.name, f"p{quantile * 100:g}", f"{value * 1e3:.3f}", f"{ours[quantile] * 1e3:.3f}")
            print(f"| {' | '.join(cells)} | {error * 100:+.1f} % |{'' if abs(error) <= GOAL else ' MISSED'}")
    return good


def main() -> int:
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
    print(f"\n{'all goals are met' if good else 'MISSED'}, requests from {since:%Y-%m-%dT%H:%M:%SZ}")
    return 1 if options.gate and not good else 0


if __name__ == "__main__":
    sys.exit(main())
