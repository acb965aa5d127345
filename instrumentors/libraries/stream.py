"""A response that comes in parts: what its reader waits for is the first part, and the longest pause between two.

Its duration says little: it lasts as long as there is something to say. A body whose length was announced is none, in
however many parts it is sent: a file is not made while it is sent.
"""

from __future__ import annotations

from ...core.names import BY_FIRST_CHUNK
from ..records import Marks

# Chunks that go straight to the socket's buffer take less; to mark each would fill the list for nothing.
MIN_CHUNK_NS = 50_000


class Stream:
    """The chunks of one body; a chunk without bytes is none.

    Args:
        at: When the first was handed to the server, by `clock`. [nanoseconds]
    """

    __slots__ = ("_first", "_last", "_longest")

    def __init__(self, at: int) -> None:
        self._first = self._last = at
        # Negative until there is a second chunk: one alone is no stream, such as an answer that a middleware passed on.
        self._longest = -1

    def add(self, at: int) -> None:
        """Note a further chunk, handed to the server *at* that time of `clock`."""
        self._longest = max(self._longest, at - self._last)
        self._last = at

    def facts(self) -> Marks:
        """Return what the request shall say about its stream."""
        if self._longest < 0:
            return []
        return ["@first_token", self._first, BY_FIRST_CHUNK, "@gap", self._longest, BY_FIRST_CHUNK]
