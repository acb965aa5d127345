"""Logging of the server's commands to stderr, as text lines or as one JSON object a line.

A JSON line has `time`, `level`, `logger` and `message`, `fields` with the `extra=` values of the call, and `exception` if there
was one. Passwords in URLs and secrets from the environment are replaced by `…` in every record.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TextIO
from urllib.parse import unquote

from .errors import ConfigError, StagelensError

_log = logging.getLogger("stagelens")

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
FORMATS = ("text", "json")
_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
# Libraries whose info messages are not useful to an operator.
_QUIET = ("alembic", "httpx", "uvicorn", "werkzeug")
# Standard attributes of every log record.
_OWN = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}

# Control characters except newline and tab, Unicode line separators, and unpaired surrogates.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_UNINDENTED = re.compile(r"\n(?! )")

_HIDDEN = "…"
# `user:password@` of a URL, up to the last "@", because a password may contain "@".
_LOGIN = re.compile(r"(?<=://)([^\s/@:]*):(\S+)(?=@)")
# Names of variables that hold a secret, and not the path of a secret file.
_SECRET = re.compile(r"TOKEN|PASSWORD|PASSWD|SECRET|WEBHOOK|ROUTING_KEY|API_KEY|ACCESS_KEY|CREDENTIAL")
_PLACE = re.compile(r"_(FILE|PATH|DIR)$")
# Minimum length of a masked secret: masking shorter ones would hide unrelated text. [characters]
_MIN_SECRET_CHARS = 8


@dataclass(frozen=True, slots=True)
class CommandOutput:
    """Status output of a command: stdout for people, the log for machines."""

    is_json: bool  # Whether the log is JSON, so that no other output is allowed

    def print_lines(self, *lines: str) -> None:
        if not self.is_json:
            print(*lines, sep="\n  ", flush=True)
            return
        for line in "\n".join(lines).splitlines():
            _log.info("%s", " ".join(line.split()))

    @contextmanager
    def report_errors(self) -> Generator[None]:
        """Log an error that ends a JSON-logging command and exit with 1; in text mode the caller prints the error."""
        try:
            yield
        except StagelensError as error:
            if not self.is_json:
                raise
            _log.error("%s", error)
            raise SystemExit(1) from error


def configure_logging(env: Mapping[str, str], stream: TextIO | None = None) -> CommandOutput:
    level, form = (
        _one_of(env, "STAGELENS_LOG_LEVEL", "info", LEVELS),
        _one_of(env, "STAGELENS_LOG_FORMAT", "text", FORMATS),
    )
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter((_Json if form == "json" else _Lines)(secrets_of(env)))
    logging.getLogger().addHandler(handler)
    logging.getLogger().setLevel(LEVELS[level])
    for library in _QUIET:
        logging.getLogger(library).setLevel(max(LEVELS[level], logging.WARNING))
    return CommandOutput(form == "json")


def secrets_of(env: Mapping[str, str]) -> list[str]:
    """Return the secret texts of *env*: values of variables named as secrets, and passwords in URLs."""
    named = [text for name, text in env.items() if _SECRET.search(name.upper()) and not _PLACE.search(name.upper())]
    within = [match[2] for text in env.values() for match in _LOGIN.finditer(text)]
    secrets = {text.strip() for text in (*named, *within, *map(unquote, within))}
    return sorted((text for text in secrets if len(text) >= _MIN_SECRET_CHARS), key=len, reverse=True)


def _one_of(env: Mapping[str, str], key: str, otherwise: str, allowed: Mapping[str, int] | tuple[str, ...]) -> str:
    text = (env.get(key) or otherwise).strip().lower()
    if text not in allowed:
        msg = f"{key} is {text!r}; write one of {', '.join(allowed)}"
        raise ConfigError(msg)
    return text


class _Lines(logging.Formatter):
    """Formatter of records as text; further lines of a record are indented, so that logged text cannot imitate a record."""

    def __init__(self, secrets: list[str]) -> None:
        super().__init__(_TEXT)
        self._secrets = secrets

    def format(self, record: logging.LogRecord) -> str:
        # Secrets are replaced first, because a secret with several lines cannot be found after indentation.
        text = self._clean(super().format(record))
        text = _CONTROL.sub(lambda match: ascii(match[0])[1:-1], text)
        return _UNINDENTED.sub("\n  ", text)

    def _clean(self, text: str) -> str:
        text = _LOGIN.sub(rf"\1:{_HIDDEN}", text)
        for secret in self._secrets:
            text = text.replace(secret, _HIDDEN)
        return text


class _Json(_Lines):
    def format(self, record: logging.LogRecord) -> str:
        document: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC)
            .isoformat(timespec="milliseconds")
            .replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self._clean(record.getMessage()),
        }
        if fields := {key: self._plain(value) for key, value in vars(record).items() if key not in _OWN}:
            document["fields"] = fields
        if record.exc_info:
            document["exception"] = self._clean(self.formatException(record.exc_info))
        return json.dumps(document, ensure_ascii=False)

    def _plain(self, value: object) -> object:
        return value if isinstance(value, bool | int | float | None) else self._clean(str(value))
