"""`stagelens collector --check`: all errors together, no secrets, and no changes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from stagelens.__main__ import main

if TYPE_CHECKING:
    from tests.support.certificate_authority import Authorities
    from tests.support.postgresql_server import Server

SECRET = "a3f1" * 16
Run = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STAGELENS_COLLECTOR_CONFIG", "collector.yaml")
    monkeypatch.setenv("TEAM_A", SECRET)
    file = tmp_path / "collector.yaml"
    file.write_text("""\
access:
  tokens:
    - {name: team-a, token_env: TEAM_A, environment: prod, requests_per_second: 50, bytes_per_second: 5MiB}
rules:
  spans: [{name: our reranker, when: {span: rerank}, stage: forward}]
scrape:
  targets: [{url: "http://llm:8000/metrics", service: llm, engine: vllm}]
""")
    return file


def check(capsys: Run, *options: str) -> tuple[int, str, str]:
    code = main(["collector", "--check", *options])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_check_describes_a_valid_collector_without_secrets(capsys: Run, tmp_path: Path) -> None:
    code, output, errors = check(capsys, "--collector-host", "0.0.0.0")

    assert (code, errors) == (0, "")
    for part in (
        "http://localhost:4318 (on all addresses of this machine)",
        "4317",
        "team-a (as environment prod, 50 requests/s, 5 MiB/s)",
        "stagelens.db",
    ):
        assert part in output
    for part in ("1 custom", "http://llm:8000/metrics as llm", "vLLM"):
        assert part in output
    assert SECRET not in output
    assert [path.name for path in tmp_path.iterdir()] == ["collector.yaml"]


def test_all_errors_are_reported_together(
    capsys: Run, settings: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("STAGELENS_MAX_BODY", "much")
    monkeypatch.setenv("STAGELENS_COLLECTOR_TOKEN", "hunter2")
    settings.write_text(f"access:\n  tokens:\n    - {{name: a, token: {SECRET}}}\nscrap: {{}}\n")
    code, output, errors = check(capsys, "--collector-port", "http", "--database", f"sqlite:///{tmp_path}/no/where.db")
    lines = errors.splitlines()

    assert (code, output) == (1, "")
    for begin in (
        "STAGELENS_COLLECTOR_PORT is",
        "STAGELENS_MAX_BODY is",
        "STAGELENS_COLLECTOR_TOKEN has",
        "the database",
    ):
        assert len([line for line in lines if line.startswith(begin)]) == 1
    assert [line.split(": ")[0] for line in lines if ".yaml" in line] == ["collector.yaml:3", "collector.yaml:4"]
    assert SECRET not in errors
    assert "hunter2" not in errors


def test_an_open_collector_is_an_error(capsys: Run, settings: Path) -> None:
    settings.write_text("")

    assert "STAGELENS_COLLECTOR_TOKEN" in check(capsys, "--collector-host", "0.0.0.0")[2]
    assert "all senders, without authentication" in check(capsys)[1]


def test_certificates_are_checked(capsys: Run, settings: Path, authority: Authorities) -> None:
    own, other = authority("servers").sign("own"), authority("servers").sign("other")
    text = f"access:\n  tls: {{certificate: {own.certificate}, key: KEY, client_ca: {authority('clients').file}}}\n"
    settings.write_text(text.replace("KEY", str(other.key)))
    mismatched = check(capsys)
    settings.write_text(text.replace("KEY", str(own.key)))
    matched = check(capsys)

    assert mismatched[0] == 1
    assert str(other.key) in mismatched[2]
    assert matched[0] == 0
    assert f"all senders, with a certificate signed by {authority('clients').file}" in matched[1]


def test_an_unknown_setting_is_a_warning(capsys: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAGELENS_COLLECTOR_OPNE", "true")
    monkeypatch.setenv("STAGELENS_COLLECTOR_PORT_4318_TCP_ADDR", "10.0.0.1")
    code, output, _ = check(capsys)
    warnings = [line for line in output.splitlines() if line.startswith("warning")]

    assert code == 0
    assert warnings == ["warning: STAGELENS_COLLECTOR_OPNE is not known; did you mean STAGELENS_COLLECTOR_OPEN?"]


@pytest.mark.stacks
def test_an_unavailable_database_is_reported(capsys: Run, postgresql_server: Server) -> None:
    url = postgresql_server.new_database()
    dead = "postgresql://u:hunter2@127.0.0.1:1/d"
    code, _, errors = check(capsys, "--database", dead)

    assert code == 1
    assert "127.0.0.1:1" in errors
    assert "hunter2" not in errors
    assert check(capsys, "--database", url)[2] == ""
    with psycopg.connect(url) as connection:
        tables = connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone()

    assert tables == (0,)
