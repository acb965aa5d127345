"""Logging: levels, text and JSON format, and redaction of secrets."""

from __future__ import annotations

import io
import json
import logging
import re
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagelens.core import logs
from stagelens.core.errors import ConfigError
from stagelens.core.logs import CommandOutput

LOG = logging.getLogger("stagelens.tests")


@pytest.fixture(autouse=True)
def _as_before() -> Generator[None]:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    yield
    root.handlers[:] = before
    root.setLevel(level)


def logged(env: dict[str, str]) -> io.StringIO:
    stream = io.StringIO()
    logging.getLogger().handlers.clear()
    logs.configure_logging(env, stream)
    return stream


def objects(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_json_line_has_every_field() -> None:
    stream = logged({"STAGELENS_LOG_FORMAT": "json"})
    try:
        _fail()
    except ValueError:
        LOG.exception("first\nsecond %s", "third", extra={"batch": "a:1", "points": 3})
    (record,) = objects(stream)

    assert record.pop("exception").endswith("ValueError: no\nnumber")
    assert record.pop("time").endswith("Z")
    assert record == {
        "level": "error",
        "logger": "stagelens.tests",
        "message": "first\nsecond third",
        "fields": {"batch": "a:1", "points": 3},
    }


def _fail() -> None:
    msg = "no\nnumber"
    raise ValueError(msg)


@given(st.text())
def test_whatever_is_logged_is_one_line_of_json(message: str) -> None:
    stream = logged({"STAGELENS_LOG_FORMAT": "json"})
    LOG.warning("%s", message)

    assert [record["level"] for record in map(json.loads, stream.getvalue().strip("\n").split("\n"))] == ["warning"]


@given(st.text())
def test_a_log_text_cannot_imitate_another_record(message: str) -> None:
    stream = logged({"STAGELENS_LOG_FORMAT": "text"})
    LOG.warning("%s", f"{message}\r\n2026-11-26 00:00:00 ERROR forged\x1b[2K")
    first, *more = stream.getvalue().removesuffix("\n").split("\n")

    assert "WARNING" in first
    assert all(line.startswith(" ") for line in more)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]", stream.getvalue())


@pytest.mark.parametrize(("level", "seen"), [("debug", 4), ("info", 3), ("warning", 2), ("error", 1)])
def test_nothing_below_the_level_is_written(level: str, seen: int) -> None:
    stream = logged({"STAGELENS_LOG_LEVEL": level})
    for write in (LOG.debug, LOG.info, LOG.warning, LOG.error):
        write("here")

    assert stream.getvalue().count("here") == seen


@pytest.mark.parametrize("form", logs.FORMATS)
def test_no_secret_is_written(form: str) -> None:
    database = "postgresql://stagelens:p%40ssw0rd/1@db/stagelens"
    env = {
        "STAGELENS_LOG_FORMAT": form,
        "STAGELENS_DATABASE": database,
        "STAGELENS_COLLECTOR_TOKEN": "token-of-the-collector",
        "SLACK_WEBHOOK_URL": "https://hooks.slack.example/services/T0/B0/x1y2z3",
        "STAGELENS_DASHBOARD_TOKEN": "-----BEGIN KEY-----\nbm90aGluZw\n-----END KEY-----",
        "STAGELENS_DASHBOARD_TOKEN_FILE": "/run/secrets/dashboard",
    }
    stream = logged(env)
    trouble = ConnectionError(database)
    LOG.error("p@ssw0rd/1 at %s", database, extra={"sent": env["SLACK_WEBHOOK_URL"]}, exc_info=trouble)
    LOG.error("clickhousedb://u:never-configured@host/db %s", env["STAGELENS_COLLECTOR_TOKEN"])
    LOG.error("no key: %s", env["STAGELENS_DASHBOARD_TOKEN"])
    LOG.error("%s cannot be read", env["STAGELENS_DASHBOARD_TOKEN_FILE"])
    text = stream.getvalue()

    for secret in ("ssw0rd", "token-of-the-collector", "x1y2z3", "never-configured", "bm90aGluZw"):
        assert secret not in text
    assert "postgresql://stagelens:…@db/stagelens" in text
    assert "/run/secrets/dashboard cannot be read" in text


def test_an_invalid_setting_names_the_allowed_values() -> None:
    with pytest.raises(ConfigError, match="STAGELENS_LOG_LEVEL is 'loud'; write one of debug, info, warning, error"):
        logs.configure_logging({"STAGELENS_LOG_LEVEL": "loud"})
    with pytest.raises(ConfigError, match="STAGELENS_LOG_FORMAT is 'xml'; write one of text, json"):
        logs.configure_logging({"STAGELENS_LOG_FORMAT": "xml"})


def test_startup_messages_are_json_in_json_format(capsys: pytest.CaptureFixture[str]) -> None:
    stream = logged({"STAGELENS_LOG_FORMAT": "json"})
    CommandOutput(is_json=True).print_lines(
        "stagelens 1.0", "OTLP/HTTP  http://127.0.0.1:4318\n  OTLP/gRPC  http://127.0.0.1:4317"
    )
    of_machines = capsys.readouterr().out
    CommandOutput(is_json=False).print_lines("stagelens 1.0", "OTLP/HTTP  http://127.0.0.1:4318")

    assert [record["message"] for record in objects(stream)] == [
        "stagelens 1.0",
        "OTLP/HTTP http://127.0.0.1:4318",
        "OTLP/gRPC http://127.0.0.1:4317",
    ]
    assert of_machines == ""
    assert capsys.readouterr().out == "stagelens 1.0\n  OTLP/HTTP  http://127.0.0.1:4318\n"


def test_a_command_writes_only_json_lines(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "stagelens", "collector", "--log-format", "json", "--collector-port", "0"]
    started = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert started.stdout is not None
    lines: list[str] = []
    try:
        for line in started.stdout:
            lines.append(line)
            if json.loads(line)["message"].startswith("OTLP/gRPC"):
                started.terminate()
        code = started.wait(30)
    finally:
        started.kill()
        started.stdout.close()

    assert code == 0
    assert [json.loads(line)["level"] for line in lines] == ["info"] * len(lines)
    assert json.loads(lines[-1])["message"] == "stagelens: stopping; accepted data is stored first"


def test_a_fatal_error_is_json(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "stagelens", "collector", "--log-format", "json", "--database"]
    url = "postgresql://stagelens:never-to-be-seen@127.0.0.1:1/x"
    ended = subprocess.run([*command, url], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    (line,) = ended.stderr.splitlines()

    assert (ended.returncode, ended.stdout) == (1, "")
    assert json.loads(line)["level"] == "error"
    assert "the server cannot be reached" in json.loads(line)["message"]
    assert "never-to-be-seen" not in line
