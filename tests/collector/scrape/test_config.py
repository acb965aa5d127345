"""Section `scrape:` of the collector's file: parsing, and errors with their lines."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from stagelens.collector.scrape import config
from stagelens.collector.scrape.config import DimensionLabels, ScrapeTarget
from stagelens.core.egress import CallTls, EgressPolicy
from stagelens.core.settings import yaml_config


def read(text: str) -> tuple[tuple[ScrapeTarget, ...], list[str]]:
    document = yaml_config.parse(text)
    targets = config.read_targets(document, ("scrape",), document.value["scrape"], EgressPolicy())
    return targets, [f"{problem.line}: {problem.text}" for problem in document.problems]


def test_a_target_needs_an_address_and_a_service() -> None:
    targets, problems = read("scrape:\n  targets:\n  - {url: 'http://llm:8000/metrics', service: chat}\n")

    assert problems == []
    assert targets == (ScrapeTarget(url="http://llm:8000/metrics", service="chat"),)


def test_every_setting_is_parsed(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("token", "ca.pem", "cert.pem", "key.pem")]
    for file in files:
        file.touch()
    targets, problems = read(
        f"""\
scrape:
  targets:
  - url: https://triton:8002/metrics
    engine: triton
    service: vision
    version: 1.0
    environment: prod
    every: 30s
    headers: {{X-Scope-OrgID: team}}
    bearer_token_file: {files[0]}
    tls: {{ca_file: {files[1]}, cert_file: {files[2]}, key_file: {files[3]}}}
    statistics_url: http://triton:8000/v2/models/stats
"""
    )
    (target,) = targets

    assert problems == []
    assert target.engine_rules is config.engines()["triton"]
    assert (target.version, target.environment, target.every) == ("1.0", "prod", timedelta(seconds=30))
    assert target.headers == {"X-Scope-OrgID": "team"}
    assert target.bearer_token_file == files[0]
    assert target.tls == CallTls(ca_file=files[1], cert_file=files[2], key_file=files[3])
    assert target.statistics_url == "http://triton:8000/v2/models/stats"


def test_custom_rules_read_any_metric() -> None:
    targets, problems = read(
        """\
scrape:
  targets:
  - url: http://mine/metrics
    engine: generic
    service: mine
    rules:
      request: my_request_duration_seconds
      stages:
        queue: {names: my_queue_ms, count: my_requests}
        rerank: [rerank_us, rerank_micros]
      labels: {model: [model, name]}
      without: {path: [/health, /ready], method: HEAD}
"""
    )
    engine = targets[0].engine_rules

    assert problems == []
    assert engine is not None
    assert engine.request is not None
    assert engine.request.unit_seconds == 1.0
    assert (engine.stages["queue"].count, engine.stages["queue"].unit_seconds) == (("my_requests",), 1e-3)
    assert engine.stages["rerank"].names == ("rerank_us", "rerank_micros")
    assert engine.labels == DimensionLabels(model=("model", "name"))
    assert engine.without == {"path": ("/health", "/ready"), "method": ("HEAD",)}


@pytest.mark.parametrize(
    ("line", "at", "problem"),
    [
        ("url: ftp://llm/metrics", 4, "scrape.targets[0].url is not a web address; it starts with https://"),
        ("url: http://", 4, "scrape.targets[0].url is not a URL; write one such as http://llm:8000/metrics"),
        (
            "url: 'http://u:p@llm/'",
            4,
            "scrape.targets[0].url contains a user; use bearer_token_file or bearer_token_env",
        ),
        ("engine: vlm", 5, "did you mean vllm?"),
        ("every: 10ms", 5, "scrape.targets[0].every is 0.01s; write 1s to 300s, such as 10s"),
        ("bearer_token_file: /none", 5, "scrape.targets[0].bearer_token_file is '/none', which is not a file"),
        ("headers: {'a b': c}", 5, "scrape.targets[0].headers.a b is not a valid header; use ASCII characters"),
        (
            "rules: {request: a}\n    engine: vllm",
            5,
            "scrape.targets[0].rules are valid with `engine: generic`, not with 'vllm'",
        ),
        ("rules: {stages: {queue: 7}}", 5, "scrape.targets[0].rules.stages.queue does not name metrics"),
        ("rules: {request: {names: a, unit: h}}", 5, "scrape.targets[0].rules.request.unit is 'h'; write one of s, ms"),
        (
            "rules: {request: a, without: [x]}",
            5,
            "scrape.targets[0].rules.without is a list; write keys and values, such as `path: [/health, /metrics]`",
        ),
        (
            "rules: {}",
            5,
            "scrape.targets[0].rules selects no metric; add `request: my_request_duration_seconds`, or `stages:`",
        ),
        (
            "engine: generic",
            3,
            "scrape.targets[0].rules is missing; add `rules: {request: my_request_duration_seconds}`",
        ),
        ("evry: 10s", 5, "scrape.targets[0].evry is not known; did you mean every?"),
    ],
)
def test_an_error_is_reported_with_line_and_fix(line: str, at: int, problem: str) -> None:
    url = "" if line.startswith("url") else "    url: http://llm/metrics\n"
    _, problems = read(f"scrape:\n  targets:\n  - service: chat\n{url}    {line}\n")

    assert len(problems) == 1
    assert problem in problems[0]
    assert problems[0].startswith(f"{at}:")


def test_a_duplicate_target_is_an_error() -> None:
    target = "  - {url: http://llm/metrics, service: chat}\n"
    targets, problems = read(f"scrape:\n  targets:\n{target}{target}")

    assert targets == ()
    assert problems == [
        "4: scrape.targets[1].url is http://llm/metrics, which is another target too; list each URL once"
    ]


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
