"""User file: one line for each reader, `name:scrypt:N:r:p$salt$hash`, as `werkzeug.security` hashes passwords.

`stagelens dashboard --add-user NAME` prompts for a password and writes the line. The file is reloaded when it changes: a
removed user is signed out, and a new password ends the sessions of the old one.
"""

from __future__ import annotations

import getpass
import os
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock

from werkzeug.security import check_password_hash, generate_password_hash

from ...core.errors import ConfigError
from ...core.settings.live_file import LiveFile, log

# OWASP Password Storage Cheat Sheet, scrypt: N = 2^14, r = 8, p = 5 (16 MiB).
_METHOD = "scrypt:16384:8:5"
# Hash of no password: checking an unknown name takes as long as checking a wrong password.
_NO_PASSWORD = f"{_METHOD}${'0' * 16}${'0' * 128}"
# Hashes of `generate_password_hash`.
_HASH = re.compile(r"scrypt:(\d{1,9}):(\d{1,9}):(\d{1,9})\$\w+\$[0-9a-f]{128}", re.ASCII)
# Limits of the scrypt parameters in a line. scrypt needs 128 * N * r bytes; Werkzeug allows 132 * N * r * p bytes, which
# is too little for a small N, and must stay below 2^31.
_MIN_N, _MAX_MEMORY_BYTES, _MAX_P = 2**10, 128 * 2**20, 15
_NAME = re.compile(r"[\w.@+-]{1,64}")
_MIN_LETTERS = 8


class Users(LiveFile[dict[str, str]]):
    """Readers with names and passwords, from a user file; the stored secret by name. Thread-safe."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, _read_users)
        # Each check takes 16 MiB and most of a core, so only one runs at a time.
        self._one_by_one = Lock()
        _read_users(path)

    def accepted(self, content: dict[str, str]) -> None:
        log.info("%s has %d users", self.path, len(content))

    def line(self, name: str) -> str | None:
        """Return the stored secret of *name*, to which sessions are bound; None for an unknown name."""
        self.refresh(datetime.now(UTC))
        return (self.current or {}).get(name)

    def accept(self, name: str, password: str) -> bool:
        """Return whether *password* is the password of *name*; an unknown name takes the same time."""
        secret = self.line(name)
        with self._one_by_one:
            return check_password_hash(secret or _NO_PASSWORD, password) and secret is not None


def _read_users(path: Path) -> dict[str, str]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        msg = (
            f"STAGELENS_DASHBOARD_USERS is {path}, which cannot be read: {error}.\n"
            "    Create the file with stagelens dashboard --add-user NAME."
        )
        raise ConfigError(msg) from error
    return dict(_entry(path, number, line) for number, line in _entries(text))


def add_user(path: Path, name: str, password: str) -> None:
    """Write *name* with *password* to the user file at *path*, replacing an older line; only the owner can read it."""
    if not _NAME.fullmatch(name):
        msg = f"{name!r} is not a valid name; use up to 64 letters, digits and . @ + - _"
        raise ConfigError(msg)
    if len(password) < _MIN_LETTERS:
        msg = f"the password has {len(password)} characters; use at least {_MIN_LETTERS}"
        raise ConfigError(msg)
    old = path.read_text(encoding="utf-8") if path.exists() else ""
    other_lines = [line for line in old.splitlines() if not line.startswith(f"{name}:")]
    beside = path.with_name(f"{path.name}.new")
    with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as out:
        out.write("\n".join([*other_lines, f"{name}:{generate_password_hash(password, _METHOD)}"]) + "\n")
    beside.replace(path)


def _entries(text: str) -> list[tuple[int, str]]:
    numbered = enumerate(text.splitlines(), 1)
    return [(number, line.strip()) for number, line in numbered if line.strip() and not line.startswith("#")]


def _entry(path: Path, number: int, line: str) -> tuple[str, str]:
    name, _, secret = line.partition(":")
    if not _NAME.fullmatch(name) or not _is_valid(secret):
        # The line may contain a password, so the message does not repeat it.
        msg = f"{path}, line {number}, is not NAME:scrypt:…; add such a line with stagelens dashboard --add-user NAME"
        raise ConfigError(msg)
    return name, secret


def _is_valid(secret: str) -> bool:
    match = _HASH.fullmatch(secret)
    if match is None:
        return False
    n, r, p = (int(number) for number in match.groups()[:3])
    is_power_of_two = n >= _MIN_N and n & (n - 1) == 0
    return is_power_of_two and 0 < 128 * n * r <= _MAX_MEMORY_BYTES and 0 < p <= _MAX_P


def add_user_command(name: str, environment: Mapping[str, str]) -> int:
    """Add the user *name*, with a password typed twice at the terminal or read from the first line of stdin."""
    path = environment.get("STAGELENS_DASHBOARD_USERS")
    if not path:
        msg = "STAGELENS_DASHBOARD_USERS is not set; set it to the file that stores names and passwords, such as users.txt"
        raise ConfigError(msg)
    add_user(Path(path), name, _ask_password(name) if sys.stdin.isatty() else sys.stdin.readline().rstrip("\r\n"))
    print(f"{name} added; set STAGELENS_DASHBOARD_USERS={path}")
    return 0


def _ask_password(name: str) -> str:
    password = getpass.getpass(f"Password of {name}: ")
    if getpass.getpass("Again: ") != password:
        msg = "the two passwords differ; the file is unchanged"
        raise ConfigError(msg)
    return password
