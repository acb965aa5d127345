"""Settings of the collector, and its file: all errors together, and reload after changes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from stagelens.collector.config import CollectorConfig, CollectorFile, LiveConfig, read_collector_file
from stagelens.collector.prometheus_config import PrometheusSettings
from stagelens.core.errors import ConfigError

SECRET = "a3f1" * 16
OTHER = "77b0" * 16
ENV = {"TEAM_A": SECRET, "TEAM_B": OTHER, "SHORT": "guess me", "EMPTY": "", "TWO_LINES": f"{OTHER}\n{OTHER}"}
ONE = "access:\n  tokens:\n    - {name: team-a, token_env: TEAM_A}\n"
TWO = f"{ONE}    - {{name: team-b, token_env: TEAM_B}}\n"
EVERY_KEY = Path(__file__).with_name("every_key.yaml").read_text()
ERRORS = Path(__file__).with_name("config_errors.yaml").read_text().split("---\n")


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
        ("STAGELENS_TRACES", "some"),
    ],
)
def test_an_invalid_setting_names_key_value_and_fix(key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=rf"{key} is '{value[:20]}.*(write|must)"):
        CollectorConfig.from_env({key: value})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "collector.yaml"
    path.write_text(ONE)
    return path


def names(config: CollectorFile) -> list[str]:
    return [token.name for token in config.access.tokens]


def edit(file: Path, text: str) -> None:
    before = file.stat().st_mtime_ns
    file.write_text(text)
    os.utime(file, ns=(before, before + 1_000_000))


def test_the_tokens_of_the_environment_and_of_the_file_are_valid(file: Path) -> None:
    empty = file.with_name("empty.yaml")
    empty.write_text("# later\n")
    environment = {"STAGELENS_COLLECTOR_TOKEN": "b" * 32}

    assert read_collector_file(None, {}) == read_collector_file(empty, {}) == CollectorFile()
    assert names(read_collector_file(None, environment)) == ["token"]
    assert names(read_collector_file(empty, environment)) == ["token"]
    assert names(read_collector_file(file, ENV | environment)) == ["team-a", "token"]


def set_values(value: Any) -> Any:
    """Return *value*, settings that were read, as plain data without those that are not set."""
    if isinstance(value, BaseModel):
        return {key: set_values(getattr(value, key)) for key in value.model_fields_set}
    if is_dataclass(value):
        found = {field.name: set_values(getattr(value, field.name)) for field in fields(value)}
        return {key: each for key, each in found.items() if each not in (None, [], {})}
    if isinstance(value, Mapping):
        return {key: set_values(each) for key, each in value.items()}
    if isinstance(value, tuple):
        return [set_values(each) for each in value]
    if isinstance(value, bytes):
        return value.hex()
    return value if isinstance(value, bool | int | float | None) else str(value)


def test_every_key_of_the_file_is_read(file: Path) -> None:
    for name, text in (("tls.crt", ""), ("tls.key", ""), ("ca.crt", ""), ("token", "5e5e" * 16 + "\n")):
        file.with_name(name).write_text(text)
    given, expected = EVERY_KEY.replace("FOLDER", str(file.parent)).split("---\n")
    file.write_text(given)

    assert set_values(read_collector_file(file, ENV)) == yaml.safe_load(expected)


@pytest.mark.parametrize("text", ERRORS)
def test_each_error_has_its_line_and_its_fix(file: Path, text: str) -> None:
    file.write_text(text)
    expected, next_line = list[str](), list[str]()
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#! "):
            next_line.append(line.lstrip()[3:])
        else:
            expected += [f"{file}:{number}: {problem}" for problem in next_line]
            next_line = []
    with pytest.raises(ConfigError) as caught:
        read_collector_file(file, ENV)

    assert str(caught.value).splitlines() == expected
    assert not any(secret in str(caught.value) for secret in (SECRET, OTHER, ENV["SHORT"]))


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ("", PrometheusSettings()),
        ("{labels: []}", PrometheusSettings(labels=())),
        ("{histograms: 0}", PrometheusSettings(histograms=0)),
    ],
)
def test_written_settings_are_in_force(file: Path, section: str, expected: PrometheusSettings) -> None:
    file.write_text(f"prometheus: {section}\n")

    assert read_collector_file(file, {}).prometheus == expected


@pytest.mark.parametrize("text", ["access: [", "- access", "a\0b", "access: {tokens: [{}]}", "access: &a [*a]"])
def test_any_text_is_parsed_or_an_error(file: Path, text: str) -> None:
    file.write_text(text)

    with pytest.raises(ConfigError, match=r"collector\.yaml"):
        read_collector_file(file, ENV)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml cannot be read"):
        LiveConfig(tmp_path / "nowhere.yaml", {})


def test_a_changed_file_is_reloaded_and_an_invalid_one_is_not(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    live = LiveConfig(file, ENV)
    before = names(live.current)
    edit(file, TWO)
    live.refresh()
    changed = names(live.current)
    edit(file, f"{TWO}    - {{name: broken\n")
    live.refresh()

    assert (before, changed) == (["team-a"], ["team-a", "team-b"])
    assert names(live.current) == changed
    assert any("stays in effect" in line for line in caplog.messages)
    assert live.errors[0].startswith(f"{file}:")

    edit(file, ONE)
    live.refresh()

    assert (names(live.current), live.errors) == (["team-a"], ())


def test_an_emptied_file_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "collector.yaml"
    file.write_text("scrape: {targets: [{service: shop, url: 'http://127.0.0.1:8000/metrics'}]}\n")
    live = LiveConfig(file, {})
    before = live.current
    file.write_text("\n")
    live.refresh()

    assert live.current is before
    assert live.errors[0].startswith(f"{file} is empty, as after a write to a full disk")


@pytest.mark.parametrize("text", ["", "# all gone", "access:", "access: {tokens: []}", "access: {anonymous: {}}"])
def test_a_file_that_removes_all_authentication_is_refused(file: Path, text: str) -> None:
    live = LiveConfig(file, ENV)
    edit(file, text)
    live.refresh()

    assert names(live.current) == ["team-a"]
    assert "it has neither tokens nor a client_ca" in live.errors[0]


def test_tls_settings_need_a_restart(file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    live = LiveConfig(file, ENV)
    (tmp_path / "a.pem").touch()
    tls = f"  tls: {{certificate: {tmp_path}/a.pem, key: {tmp_path}/a.pem, client_ca: {tmp_path}/a.pem}}\n"
    edit(file, f"{TWO}{tls}")
    live.refresh()

    assert (names(live.current), live.current.access.tls) == (["team-a", "team-b"], None)
    assert any("restart to apply" in line for line in caplog.messages)


def test_a_watched_file_is_reloaded(
    file: Path, monkeypatch: pytest.MonkeyPatch, until: Callable[[Callable[[], object]], None]
) -> None:
    monkeypatch.setattr("stagelens.collector.config._CHECK_SECONDS", 0.01)
    live = LiveConfig(file, ENV)
    live.start()
    edit(file, TWO)
    until(lambda: names(live.current) == ["team-a", "team-b"])
    live.stop()
