"""Rules of the known engines: documented metrics become requests, stages and tokens."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from stagelens.collector.scrape import config, exposition, snapshot
from stagelens.collector.scrape.config import ScrapeTarget
from stagelens.collector.scrape.points import points_of
from stagelens.collector.scrape.snapshot import MetricStream, Snapshot, StreamCounts, difference_between
from stagelens.core import names

EXPOSITIONS = Path(__file__).parent / "expositions"
TARGET = ScrapeTarget(url="http://engine/metrics", service="llm")


class Expected(NamedTuple):
    """Expected content of an exposition: the engine, and by series the count and the sum (seconds, or 0 for tokens)."""

    engine: str
    counted: dict[tuple[str, str], tuple[int, float]]


EXPECTED = {
    "vllm": Expected(
        "vllm",
        {
            ("request", "engine"): (100, 155.5),
            ("stage", "queue"): (100, 11.25),
            ("stage", "prefill"): (100, 14.0),
            ("stage", "decode"): (100, 129.0),
            ("first_token", "engine"): (100, 25.5),
            ("output_token", "engine"): (100, 0.98),
            ("output_token", "engine_gap"): (12_700, 118.5),
            ("tokens", "input"): (51_200, 0),
            ("tokens", "output"): (12_800, 0),
        },
    ),
    "vllm_v0": Expected(
        "vllm",
        {
            ("request", "engine"): (10, 7.0),
            ("first_token", "engine"): (10, 0.75),
            ("output_token", "engine_gap"): (690, 5.5),
            ("tokens", "input"): (500, 0),
            ("tokens", "output"): (700, 0),
        },
    ),
    "sglang": Expected(
        "sglang",
        {
            ("request", "engine"): (50, 130.0),
            ("stage", "queue"): (50, 2.5),
            ("first_token", "engine"): (50, 4.5),
            ("output_token", "engine_gap"): (7507, 100.25),
            ("tokens", "input"): (8128, 0),
            ("tokens", "output"): (7557, 0),
        },
    ),
    "tgi": Expected(
        "tgi",
        {
            ("request", "engine"): (40, 40.0),
            ("stage", "tokenize"): (40, 0.05),
            ("stage", "queue"): (40, 3.5),
            ("stage", "forward"): (40, 36.0),
            ("tokens", "input"): (4200, 0),
            ("tokens", "output"): (2600, 0),
        },
    ),
    "tgi_summary": Expected("tgi", {("request", "engine"): (12, 6.6), ("stage", "queue"): (12, 0.6)}),
    "trtllm": Expected(
        "trtllm",
        {
            ("request", "engine"): (25, 14.5),
            ("stage", "queue"): (25, 0.5),
            ("first_token", "engine"): (25, 2.25),
            ("output_token", "engine"): (25, 0.25),
            ("tokens", "input"): (2500, 0),
        },
    ),
    "dynamo": Expected(
        "dynamo",
        {
            ("request", "engine"): (20, 36.0),
            ("first_token", "engine"): (20, 1.8),
            ("output_token", "engine_gap"): (980, 8.5),
            ("tokens", "input"): (1500, 0),
            ("tokens", "output"): (1000, 0),
        },
    ),
    "triton": Expected(
        "triton",
        {
            ("request", "engine"): (250, 7.5),
            ("stage", "queue"): (250, 1.05),
            ("stage", "h2d"): (250, 0.21),
            ("stage", "forward"): (250, 5.9),
            ("stage", "d2h"): (250, 0.105),
            ("first_token", "triton_first_response"): (50, 1.25),
        },
    ),
    "torchserve": Expected("torchserve", {("request", "engine"): (30, 6.0), ("stage", "queue"): (30, 1.5)}),
    "ray_serve": Expected("ray_serve", {("request", "engine"): (55, 0.6025)}),
    "kserve": Expected(
        "kserve",
        {("stage", "preprocess"): (60, 0.06), ("stage", "forward"): (60, 0.48), ("stage", "postprocess"): (60, 0.03)},
    ),
    "bentoml": Expected("bentoml", {("request", "engine"): (82, 23.504)}),
}


def read(name: str) -> Snapshot:
    text = (EXPOSITIONS / f"{name}.prom").read_text()
    every = {wanted for engine in config.engines().values() for wanted in engine.wanted()}
    samples = exposition.parse_exposition(text, "text/plain", every)
    ((key, engine),) = config.detect(samples).items()

    assert key == EXPECTED[name].engine

    return snapshot.read_snapshot(samples, engine, 100.0, "rules")


def test_every_engine_has_an_exposition_for_tests() -> None:
    assert {expected.engine for expected in EXPECTED.values()} == set(config.engines())
    assert {file.stem for file in EXPOSITIONS.iterdir()} == set(EXPECTED)


def test_every_engine_names_its_documentation() -> None:
    sources = {key: engine.sources for key, engine in config.engines().items()}

    assert all(urls and all(url.startswith("https://") for url in urls) for urls in sources.values()), sources


@pytest.mark.parametrize("name", EXPECTED)
def test_an_exposition_is_mapped_to_its_metrics(name: str) -> None:
    found: dict[tuple[str, str], tuple[int, float]] = {}
    for stream, counted in read(name).streams.items():
        count, total = found.get((stream.kind, stream.key), (0, 0.0))
        found[stream.kind, stream.key] = (count + counted.count, round(total + counted.sum, 9))

    assert found == EXPECTED[name].counted


def test_labels_become_dimensions() -> None:
    target = ScrapeTarget(url="http://engine/metrics", service="shop", environment="prod")
    engine = config.engines()["bentoml"]
    before = Snapshot(90.0, "rules")

    made = list(points_of(difference_between(before, read("bentoml")).added, target, engine, 95))

    assert {(each.series.status, each.series.route, each.series.model, each.series.version) for each in made} == {
        (names.STATUS_OK, "/summarize", "Summarization", "abc123"),
        (names.STATUS_ERROR, "/summarize", "Summarization", "abc123"),
        (names.STATUS_OK, "/encode", "Encoder", "abc123"),
    }
    assert {(each.series.service, each.series.environment, each.at) for each in made} == {("shop", "prod", 95)}


def test_a_placeholder_label_is_ignored() -> None:
    labels = (("runner_name", ""), ("service_name", "Summarization"), ("service_version", "not available"))
    added = {MetricStream("request", "engine", labels): StreamCounts({snapshot.ONE_BUCKET: 1}, 1.0)}
    made = list(points_of(added, TARGET, config.engines()["bentoml"], 95))

    assert {(each.series.model, each.series.version) for each in made} == {("Summarization", "")}


def test_triton_models_and_versions_are_separate_series_with_one_unbounded_bucket() -> None:
    streams = read("triton").streams
    found = {stream.labels: counted.sum for stream, counted in streams.items() if stream.kind == "request"}
    queue = streams[MetricStream("stage", "queue", (("model", "resnet"), ("version", "1")))]

    assert found == {
        (("model", "resnet"), ("version", "1")): 5.0,
        (("model", "bert"), ("version", "3")): 2.5,
    }
    assert dict(queue.buckets) == {snapshot.ONE_BUCKET: 200}
