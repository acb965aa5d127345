"""User file: one line for each reader, `name:scrypt$N$r$p$salt$hash`.

`stagelens dashboard --add-user NAME` asks for a password and writes the line. The file is read again when it changes: a
removed user is signed out, and a new password ends the sessions of the old one.
"""

from __future__ import annotations

import base64
import getpass
import hashlib
import hmac
import os
import re
import secrets
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from ...core.errors import ConfigError

# OWASP Password Storage Cheat Sheet, scrypt: N = 2^14, r = 8, p = 5 (16 MiB).
_N, _R, _P = 2**14, 8, 5
_SALT_BYTES, _HASH_BYTES = 16, 32
# Limits of the scrypt parameters in a line; scrypt takes 128 * N * r bytes.
_MAX_MEMORY_BYTES, _MAX_P = 128 * 2**20, 16
_NAME = re.compile(r"[\w.@+-]{1,64}")
_MIN_LETTERS = 8


class Users:
    """Readers with names and passwords. Thread-safe.

    Args:
        path: The file.

    Raises:
        ConfigError: The file or one of its lines is invalid; the message has file, line and fix.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = Lock()
        # Each check takes 16 MiB and most of a core, so checks run one at a time.
        self._one_by_one = Lock()
        self._version: tuple[int, int] | None = None
        self._lines: dict[str, str] = {}
        self._reread()

    def line(self, name: str) -> str | None:
        """Return the secret of *name*, to bind a session to it; None for an unknown name."""
        with self._lock:
            # While the file is being edited, the known users stay valid.
            with suppress(ConfigError):
                self._reread()
            return self._lines.get(name)

    def accept(self, name: str, password: str) -> bool:
        """Return whether *password* is that of *name*, in the same time for an unknown name."""
        secret = _parse(self.line(name) or "") or _NOBODY
        with self._one_by_one:
            return secret.fits(password) and secret is not _NOBODY

    def _reread(self) -> None:
        try:
            now = self._path.stat()
            version = (now.st_mtime_ns, now.st_size)
            if version == self._version:
                return
            text = self._path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            msg = (
                f"STAGELENS_DASHBOARD_USERS is {self._path}, which cannot be read: {error}.\n"
                "    stagelens dashboard --add-user NAME writes it."
            )
            raise ConfigError(msg) from error
        self._lines = dict(_entry(self._path, number, line) for number, line in _entries(text))
        self._version = version


def add_user(path: Path, name: str, password: str) -> None:
    """Write *name* with *password* into the file at *path*, in place of an older line; others cannot read the file.

    Raises:
        ConfigError: The name or the password is invalid.
    """
    if not _NAME.fullmatch(name):
        msg = f"{name!r} is no name; write up to 64 letters, digits and . @ + - _"
        raise ConfigError(msg)
    if len(password) < _MIN_LETTERS:
        msg = f"the password has {len(password)} letters; take at least {_MIN_LETTERS}"
        raise ConfigError(msg)
    old = path.read_text(encoding="utf-8") if path.exists() else ""
    kept = [line for line in old.splitlines() if not line.startswith(f"{name}:")]
    beside = path.with_name(f"{path.name}.new")
    with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as out:
        out.write("\n".join([*kept, f"{name}:{_hashed(password)}"]) + "\n")
    beside.replace(path)


def _entries(text: str) -> list[tuple[int, str]]:
    numbered = enumerate(text.splitlines(), 1)
    return [(number, line.strip()) for number, line in numbered if line.strip() and not line.startswith("#")]


def _entry(path: Path, number: int, line: str) -> tuple[str, str]:
    name, _, secret = line.partition(":")
    if not _NAME.fullmatch(name) or _parse(secret) is None:
        # The line may contain a password, so the message does not repeat it.
        msg = f"{path}, line {number}, is not NAME:scrypt$…; stagelens dashboard --add-user NAME writes such lines"
        raise ConfigError(msg)
    return name, secret


def _parse(text: str) -> _Secret | None:
    try:
        kind, n, r, p, salt, made = text.split("$")
        secret = _Secret(int(n), int(r), int(p), base64.b64decode(salt), base64.b64decode(made))
    except ValueError:
        return None
    return secret if kind == "scrypt" and _can_be_checked(secret) else None


def _can_be_checked(secret: _Secret) -> bool:
    """Return whether scrypt accepts the parameters, at a bounded cost."""
    is_power_of_two = secret.n > 1 and secret.n & (secret.n - 1) == 0
    is_bounded = 0 < 128 * secret.n * secret.r <= _MAX_MEMORY_BYTES and 0 < secret.p <= _MAX_P
    return is_power_of_two and is_bounded and len(secret.hash) == _HASH_BYTES


def _hashed(password: str) -> str:
    fresh = _Secret(_N, _R, _P, secrets.token_bytes(_SALT_BYTES), b"")
    parts = (fresh.salt, fresh.made_of(password))
    return f"scrypt${_N}${_R}${_P}$" + "$".join(base64.b64encode(each).decode() for each in parts)


def add_user_command(name: str, environment: Mapping[str, str]) -> int:
    """Add *name*; the password comes from the terminal, typed twice, or as the first line of what is piped in.

    Raises:
        ConfigError: No user file is configured, or the name or the password is invalid.
    """
    path = environment.get("STAGELENS_DASHBOARD_USERS")
    if not path:
        msg = "STAGELENS_DASHBOARD_USERS is not set; set it to the file that names and passwords are kept in, such as users.txt"
        raise ConfigError(msg)
    add_user(Path(path), name, _ask_password(name) if sys.stdin.isatty() else sys.stdin.readline().rstrip("\r\n"))
    print(f"{name} may read the dashboard that has STAGELENS_DASHBOARD_USERS={path}")
    return 0


def _ask_password(name: str) -> str:
    password = getpass.getpass(f"Password of {name}: ")
    if getpass.getpass("Again: ") != password:
        msg = "the two passwords differ; nothing was written"
        raise ConfigError(msg)
    return password


@dataclass(frozen=True, slots=True)
class _Secret:
    """A hashed password, as its line has it."""

    n: int
    r: int
    p: int
    salt: bytes
    hash: bytes

    def fits(self, password: str) -> bool:
        return hmac.compare_digest(self.made_of(password), self.hash)

    def made_of(self, password: str) -> bytes:
        memory = 2 * _MAX_MEMORY_BYTES
        return hashlib.scrypt(
            password.encode(), salt=self.salt, n=self.n, r=self.r, p=self.p, maxmem=memory, dklen=_HASH_BYTES
        )


_NOBODY = _Secret(_N, _R, _P, secrets.token_bytes(_SALT_BYTES), secrets.token_bytes(_HASH_BYTES))
