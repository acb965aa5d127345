"""Section `scrape:` of the collector's file, and the rules of the known engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from stagelens.collector.scrape import config, exposition, snapshot
from stagelens.collector.scrape.config import ScrapeTarget
from stagelens.collector.scrape.points import points_of
from stagelens.collector.scrape.snapshot import MetricStream, Snapshot, StreamCounts, difference_between
from stagelens.core import names
from stagelens.core.egress import EgressPolicy
from stagelens.core.settings import yaml_config


def read(text: str) -> tuple[tuple[ScrapeTarget, ...], list[str]]:
    document = yaml_config.parse(text)
    targets = config.read_targets(document, ("scrape",), document.value["scrape"], EgressPolicy())
    return targets, [f"{problem.line}: {problem.text}" for problem in document.problems]


def test_an_engine_has_its_own_or_custom_rules() -> None:
    own = "{url: 'http://a/', service: a, engine: triton}"
    custom = "{url: 'http://b/', service: b, rules: {request: my_queue_ms}}"
    (first, second), _ = read(f"scrape: {{targets: [{own}, {custom}]}}")

    assert first.engine_rules is config.engines()["triton"]
    assert [source.unit_seconds for source in (second.engine_rules or config.Engine()).all_sources()] == [1e-3]


@pytest.mark.parametrize(
    "host", ["169.254.169.254", "[fd00:ec2::254]", "metadata.google.internal", "[::ffff:169.254.169.254]", "[fe80::1]"]
)
def test_a_metadata_address_is_not_scraped(host: str) -> None:
    line = "{url: 'http://HOST/metrics', service: chat}".replace("HOST", host)
    allowed = line.replace("service", "allow_link_local: true, service")

    targets, problems = read(f"scrape:\n  targets:\n  - {line}\n")
    meant, none = read(f"scrape:\n  targets:\n  - {allowed}\n")

    assert targets == ()
    assert (
        "which is not allowed; STAGELENS_MAY_CALL lists allowed addresses, and `allow_link_local: true`" in problems[0]
    )
    assert (len(meant), none) == (1, [])


EXPOSITIONS = Path(__file__).parent / "expositions"
EXPECTED: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "expected_counts.yaml").read_text())


def read_exposition(name: str) -> Snapshot:
    text = (EXPOSITIONS / f"{name}.prom").read_text()
    every = {wanted for engine in config.engines().values() for wanted in engine.wanted()}
    samples = exposition.parse_exposition(text, "text/plain", every)
    ((key, engine),) = config.detect(samples).items()

    assert key == EXPECTED[name]["engine"]

    return snapshot.read_snapshot(samples, engine, 100.0, "rules")


def test_every_engine_has_an_exposition_for_tests() -> None:
    assert {expected["engine"] for expected in EXPECTED.values()} == set(config.engines())
    assert {file.stem for file in EXPOSITIONS.iterdir()} == set(EXPECTED)


def test_every_engine_names_its_documentation() -> None:
    sources = {key: engine.sources for key, engine in config.engines().items()}

    assert all(urls and all(url.startswith("https://") for url in urls) for urls in sources.values()), sources


@pytest.mark.parametrize("name", EXPECTED)
def test_an_exposition_is_mapped_to_its_metrics(name: str) -> None:
    found: dict[str, Any] = {"engine": EXPECTED[name]["engine"]}
    for stream, counted in read_exposition(name).streams.items():
        count, total = found.get(f"{stream.kind} {stream.key}", (0, 0.0))
        found[f"{stream.kind} {stream.key}"] = [count + counted.count, round(total + counted.sum, 9)]

    assert found == EXPECTED[name]


def test_labels_become_dimensions() -> None:
    target = ScrapeTarget(url="http://engine/metrics", service="shop", environment="prod")
    engine = config.engines()["bentoml"]
    before = Snapshot(90.0, "rules")

    made = list(points_of(difference_between(before, read_exposition("bentoml")).added, target, engine, 95))

    assert {(each.series.status, each.series.route, each.series.model, each.series.version) for each in made} == {
        (names.STATUS_OK, "/summarize", "Summarization", "abc123"),
        (names.STATUS_ERROR, "/summarize", "Summarization", "abc123"),
        (names.STATUS_OK, "/encode", "Encoder", "abc123"),
    }
    assert {(each.series.service, each.series.environment, each.at) for each in made} == {("shop", "prod", 95)}

    # A placeholder is no version.
    labels = (("runner_name", ""), ("service_name", "Summarization"), ("service_version", "not available"))
    added = {MetricStream("request", "engine", labels): StreamCounts({snapshot.ONE_BUCKET: 1}, 1.0)}

    assert {(each.series.model, each.series.version) for each in points_of(added, target, engine, 95)} == {
        ("Summarization", "")
    }


def test_triton_models_and_versions_are_separate_series_with_one_unbounded_bucket() -> None:
    streams = read_exposition("triton").streams
    found = {stream.labels: counted.sum for stream, counted in streams.items() if stream.kind == "request"}
    queue = streams[MetricStream("stage", "queue", (("model", "resnet"), ("version", "1")))]

    assert found == {
        (("model", "resnet"), ("version", "1")): 5.0,
        (("model", "bert"), ("version", "3")): 2.5,
    }
    assert dict(queue.buckets) == {snapshot.ONE_BUCKET: 200}
