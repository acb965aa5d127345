"""Secrets of channels: from the environment, from files, or (for those who must) from the SLO file itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..reading.fields import Fields

# A key or an address, not a picture somebody mounted there by mistake.
MAX_FILE_BYTES = 16_384


class Secrets:
    """Reads the secrets of one channel.

    Args:
        fields: The channel as the file has it.
        env: The environment.

    Attributes:
        lacking: What should hold a secret and does not: an environment variable, or a file; empty when nothing is missing.
    """

    def __init__(self, fields: Fields, env: Mapping[str, str]) -> None:
        self.lacking = ""
        self._fields = fields
        self._env = env

    def take(self, key: str, *, example: str = "", is_address: bool = False) -> str:
        """Return the secret *key*; with an *example*, the name of an environment variable, it is required.

        It is taken from the variable `<key>_env` names, the file `<key>_file` names, or *key* itself.
        """
        here = self._fields.address(key) if is_address else self._fields.text(key)
        given = {f"{key}_env": self._fields.text(f"{key}_env"), f"{key}_file": self._fields.text(f"{key}_file")}
        named = [(name, value) for name, value in given.items() if value]
        if len(named) + bool(here) > 1:
            keep = named[0][0]
            extra = named[1][0] if len(named) > 1 else keep
            self._fields.complain(f"{self._fields.name(key)} is given twice; keep {keep} alone", extra)
        if here or not named:
            if example and not here and not self._fields.has(key):
                self._fields.missing(f"{key}_env", example)
            return here
        name, source = named[0]
        value = self._env.get(source, "").strip() if name.endswith("_env") else _content(source)
        if not value:
            self.lacking = source if name.endswith("_env") else f"the file {source}"
        return value


def _content(path: str) -> str:
    """Return what the file at *path* holds; nothing where it cannot be read, which is as good as not there."""
    try:
        with Path(path).open("rb") as file:
            return file.read(MAX_FILE_BYTES).decode("utf-8", "replace").strip()
    except (OSError, ValueError):
        return ""
