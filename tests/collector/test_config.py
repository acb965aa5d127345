"""Settings of the collector."""

from __future__ import annotations

from pathlib import Path

import pytest

from stagelens.collector.config import CollectorConfig
from stagelens.core.errors import ConfigError


def test_settings_come_from_the_environment() -> None:
    config = CollectorConfig.from_env(
        {
            "STAGELENS_DATABASE": "sqlite:////data/s.db",
            "STAGELENS_COLLECTOR_HOST": "0.0.0.0",
            "STAGELENS_COLLECTOR_PORT": "4319",
            "STAGELENS_COLLECTOR_CONFIG": "/etc/collector.yaml",
            "STAGELENS_COLLECTOR_OPEN": "True",
            "STAGELENS_MAX_BODY": "1MiB",
            "STAGELENS_MAX_INFLATED": "2 MiB",
            "STAGELENS_QUEUE_BATCHES": "5",
            "STAGELENS_QUEUE_SIZE": "3MiB",
            "STAGELENS_RETENTION_10S": "2h",
            "STAGELENS_RETENTION_TRACES": "",
            "STAGELENS_POINTS": "clickhousedb://h/d",
            "STAGELENS_STORAGE_BUDGET": "2GiB",
            "STAGELENS_DASHBOARD_URL": "https://stagelens.example",
        }
    )

    assert (config.database, config.host, config.port) == ("sqlite:////data/s.db", "0.0.0.0", 4319)
    assert (config.config_file, config.is_open) == (Path("/etc/collector.yaml"), True)
    assert (config.max_body_bytes, config.max_inflated_bytes, config.queue_bytes) == (2**20, 2**21, 3 * 2**20)
    assert (config.queue_batches, config.dashboard_url) == (5, "https://stagelens.example")
    assert (config.retention.seconds_10.total_seconds(), config.retention.traces.days) == (7200, 7)
    assert (config.points, config.retention.budget_bytes) == ("clickhousedb://h/d", 2 * 2**30)
    assert CollectorConfig.from_env({}) == CollectorConfig(grpc_port=4317)
    assert CollectorConfig().retention.budget_bytes == 10 * 2**30


@pytest.mark.parametrize("value", ["0", "none", " None "])
def test_a_store_may_have_no_budget(value: str) -> None:
    assert CollectorConfig.from_env({"STAGELENS_STORAGE_BUDGET": value}).retention.budget_bytes is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("STAGELENS_COLLECTOR_PORT", "http"),
        ("STAGELENS_COLLECTOR_PORT", "65536"),
        ("STAGELENS_COLLECTOR_PORT", "-1"),
        ("STAGELENS_COLLECTOR_PORT", "9" * 5000),
        ("STAGELENS_COLLECTOR_OPEN", "perhaps"),
        ("STAGELENS_MAX_BODY", "much"),
        ("STAGELENS_MAX_INFLATED", "0MiB"),
        ("STAGELENS_QUEUE_BATCHES", "0"),
        ("STAGELENS_QUEUE_SIZE", "100"),
        ("STAGELENS_RETENTION_10S", "forever"),
        ("STAGELENS_RETENTION_1H", "0s"),
        ("STAGELENS_STORAGE_BUDGET", "plenty"),
        ("STAGELENS_STORAGE_BUDGET", "1MiB"),
        ("STAGELENS_STORAGE_BUDGET", "10"),
    ],
)
def test_an_invalid_setting_names_key_value_and_fix(key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=rf"{key} is '{value[:20]}.*(write|must)"):
        CollectorConfig.from_env({key: value})
