"""Reading gzip that may be damaged: what is whole of it comes out, and then why no more does."""

from __future__ import annotations

import io
import zlib
from typing import IO, Any

# zlib's name for "a gzip header and trailer must be there".
_GZIP = 16 + zlib.MAX_WBITS
_READ_BYTES = 64 * 1024


class Gunzip(io.RawIOBase):
    """What *file* holds, inflated; it ends where *file* does, or where it is damaged.

    Python's own raises there, and what it had inflated up to then is lost.

    Attributes:
        broken: Why it ended early; "" where it did not.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._stream = zlib.decompressobj(_GZIP)
        self._rest = b""
        self.broken = ""

    def readable(self) -> bool:
        """Say that it can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill *buffer* as far as that can be done at once."""
        data = self._inflated(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Close the file, too."""
        self._file.close()
        super().close()

    def _inflated(self, most: int) -> bytes:
        while not self.broken:
            if self._stream.eof:
                self._rest = self._stream.unused_data or self._file.read(_READ_BYTES)
                if not self._rest:
                    break
                self._stream = zlib.decompressobj(_GZIP)  # another one follows
            self._rest = self._rest or self._file.read(_READ_BYTES)
            if not self._rest:
                self.broken = "the gzip stream is cut off"
                break
            try:
                data = self._stream.decompress(self._rest, most)
            except zlib.error as error:
                self.broken = f"the gzip stream is damaged ({error})"
                break
            self._rest = self._stream.unconsumed_tail
            if data:
                return data
        return b""
