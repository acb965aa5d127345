"""`stagelens dashboard --add-user NAME`: asks for a password and writes it, hashed, into the file of users."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Mapping
from pathlib import Path

from ..core.errors import ConfigError
from .users import add_user


def main(name: str, environment: Mapping[str, str]) -> int:
    """Add *name*; the password comes from the terminal, typed twice, or as the first line of what is piped in.

    Raises:
        ConfigError: There is no file to write to, or the name or the password will not do.
    """
    path = environment.get("STAGELENS_DASHBOARD_USERS")
    if not path:
        msg = "STAGELENS_DASHBOARD_USERS is not set; set it to the file that names and passwords are kept in, such as users.txt"
        raise ConfigError(msg)
    add_user(Path(path), name, _typed(name) if sys.stdin.isatty() else sys.stdin.readline().rstrip("\r\n"))
    print(f"{name} may read the dashboard that has STAGELENS_DASHBOARD_USERS={path}")
    return 0


def _typed(name: str) -> str:
    password = getpass.getpass(f"Password of {name}: ")
    if getpass.getpass("Again: ") != password:
        msg = "the two passwords differ; nothing was written"
        raise ConfigError(msg)
    return password
