"""Decompression of gzip files up to a damage."""

from __future__ import annotations

import gzip
import io
import zlib
from typing import IO, Any


class TolerantGunzip(io.RawIOBase):
    """Decompressed content of the gzip *file* up to its end or the damage, whose reason is `broken`."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._stream = gzip.GzipFile(fileobj=file)
        self.broken = ""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = b"" if self.broken else self._read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def _read(self, most: int) -> bytes:
        try:
            return self._stream.read1(most)
        except EOFError:
            self.broken = "the gzip stream is cut off"
        except (gzip.BadGzipFile, zlib.error) as error:
            self.broken = f"the gzip stream is damaged ({error})"
        return b""

    def close(self) -> None:
        self._file.close()
        super().close()
