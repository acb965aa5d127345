"""Section `scrape:` of the collector's file: parsing, and errors with their lines."""

from __future__ import annotations

import pytest

from stagelens.collector.scrape import config
from stagelens.collector.scrape.config import ScrapeTarget
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
