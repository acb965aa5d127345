"""Secrets that a YAML file needs: from the environment, from files, or (where it may) from the YAML file itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from .fields import Fields
from .yaml_lines import Document, Problem

# A key or an address, not a picture somebody mounted there by mistake.
MAX_FILE_BYTES = 16_384


class Secrets:
    """Reads the secrets of one entry.

    Args:
        document: The document it is in; a file that holds no secret any more is a warning there.
        fields: The entry as the file has it.
        env: The environment.
        held: What each file held when it last held a secret, by its path; what is read now is added. While somebody
            rotates a secret its file may be empty or gone for a moment, and nothing must wait for that.

    Attributes:
        lacking: What should hold a secret and does not: an environment variable, or a file; empty when nothing is missing.
        files: The files that secrets are in.
    """

    def __init__(self, document: Document, fields: Fields, env: Mapping[str, str], held: dict[str, str]) -> None:
        self.lacking = ""
        self.files: list[Path] = []
        self._document = document
        self._fields = fields
        self._env = env
        self._held = held

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
        value = self._env.get(source, "").strip() if name.endswith("_env") else self._content(name, source)
        if not value:
            self.lacking = source if name.endswith("_env") else f"the file {source}"
        return value

    def _content(self, key: str, path: str) -> str:
        """Return the secret in the file at *path*, or the one that was there; nothing where there never was any."""
        self.files.append(Path(path))
        found, trouble = _read(path)
        if found:
            self._held[path] = found
        elif path in self._held:
            text = f"{self._fields.name(key)} names {path}, which {trouble}; the secret it held before is used on"
            self._document.warnings.append(Problem(self._fields.line_of(key), text))
        return self._held.get(path, "")


def _read(path: str) -> tuple[str, str]:
    """Return the one line of text in the file at *path*; or nothing, and what is wrong with the file."""
    try:
        with Path(path).open("rb") as file:
            text = file.read(MAX_FILE_BYTES + 1).decode().strip()
    except OSError as error:
        return "", f"cannot be read ({error.strerror})"
    except ValueError:
        return "", "is no text"
    if not text:
        return "", "is empty"
    return (text, "") if text.isprintable() and len(text) <= MAX_FILE_BYTES else ("", "is not one line of text")
