"""Decompression of gzip files up to a damage."""

from __future__ import annotations

import io
import zlib
from typing import IO, Any

# zlib's name for "a gzip header and trailer must be there".
_GZIP_WBITS = 16 + zlib.MAX_WBITS
_GUNZIP_READ_BYTES = 64 * 1024


class TolerantGunzip(io.RawIOBase):
    """Decompressed content of the gzip *file* up to its end or the damage, where `gzip.GzipFile` loses it; `broken` is the reason."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._stream = zlib.decompressobj(_GZIP_WBITS)
        self._rest = b""
        self.broken = ""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._inflated(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()

    def _inflated(self, most: int) -> bytes:
        while not self.broken:
            if self._stream.eof:
                self._rest = self._stream.unused_data or self._file.read(_GUNZIP_READ_BYTES)
                if not self._rest:
                    break
                self._stream = zlib.decompressobj(_GZIP_WBITS)  # another gzip member follows
            self._rest = self._rest or self._file.read(_GUNZIP_READ_BYTES)
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
