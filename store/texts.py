"""Text that every engine can keep."""

from __future__ import annotations

# Longer names are cut: nobody reads them, and all the dimensions of a series together have to fit into an index entry of
# PostgreSQL, which is 2704 bytes at most.
MAX_NAME_BYTES = 256


def is_storable(text: str) -> bool:
    """Say whether `storable` returns *text* as it is; of what is no ASCII it is not said."""
    return text.isascii() and "\0" not in text


def storable(text: str) -> str:
    r"""Return *text* with U+FFFD for NUL, which PostgreSQL has no room for, and "?" for what is no character at all.

    >>> storable("a\0b\ud800")
    'a\ufffdb?'
    """
    return text if is_storable(text) else text.replace("\0", "\ufffd").encode(errors="replace").decode()


def name(text: str) -> str:
    """Return *text* as it is stored where it names a dimension or a stage: `storable`, and at most `MAX_NAME_BYTES` long.

    >>> name("推論" * 1000) == "推論" * 42 + "推"
    True
    """
    return storable(text).encode()[:MAX_NAME_BYTES].decode(errors="ignore")
