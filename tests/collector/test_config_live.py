"""File of the collector: all errors together, and reload after changes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from stagelens.collector.config import CollectorFile, LiveConfig, read_collector_file
from stagelens.core.errors import ConfigError

SECRET = "a3f1" * 16
ENV = {"TEAM_A": SECRET, "TEAM_B": "77b0" * 16}
ONE = "access:\n  tokens:\n    - {name: team-a, token_env: TEAM_A}\n"
TWO = f"{ONE}    - {{name: team-b, token_env: TEAM_B}}\n"


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


def test_all_errors_are_reported_together_with_their_lines(file: Path) -> None:
    file.write_text(
        f"acces: {{}}\naccess:\n  tokens:\n    - {{name: a, token: {SECRET}}}\n    - {{name: b, token_env: X}}\n"
    )
    with pytest.raises(ConfigError) as caught:
        read_collector_file(file, {})
    lines = str(caught.value).splitlines()

    assert [line.split(": ")[0] for line in lines] == [f"{file}:1", f"{file}:4", f"{file}:5"]
    assert SECRET not in str(caught.value)


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
