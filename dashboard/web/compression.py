"""Compression of responses with zstd or gzip, whichever the client accepts; streamed responses chunk by chunk."""

from __future__ import annotations

import contextlib
import gzip
import zlib
from collections.abc import Iterable, Iterator
from typing import Literal, cast

import zstandard
from flask import Flask, Response, request

Encoding = Literal["zstd", "gzip"]
# Levels of zstd and gzip: for responses that are made once, and for files that are compressed once for all readers.
_FAST, _SMALL = (3, 5), (12, 9)
# Below this size compression saves less than its header costs.
_MIN_BYTES = 700
_TEXT = ("text/", "application/json", "application/javascript", "image/svg+xml")
# Window size that makes zlib write gzip headers.
_GZIP_WINDOW = 31


def accepted_encoding() -> Encoding | None:
    return next((encoding for encoding in ("zstd", "gzip") if request.accept_encodings[encoding] > 0), None)


def compressed(body: bytes, encoding: Encoding, *, small: bool = False) -> bytes:
    levels = _SMALL if small else _FAST
    if encoding == "zstd":
        return zstandard.ZstdCompressor(levels[0]).compress(body)
    return gzip.compress(body, levels[1], mtime=0)


def compress_responses(server: Flask) -> None:
    def after(response: Response) -> Response:
        if not _can_be_compressed(response):
            return response
        response.headers.add("Vary", "Accept-Encoding")
        encoding = accepted_encoding()
        if encoding is None:
            return response
        if response.is_streamed:
            response.response = _compressed_chunks(cast("Iterable[str]", response.response), encoding)
        elif len(body := response.get_data()) >= _MIN_BYTES:
            response.set_data(compressed(body, encoding))
        else:
            return response
        response.headers["Content-Encoding"] = encoding
        return response

    server.after_request(after)


def _can_be_compressed(response: Response) -> bool:
    return (
        200 <= response.status_code < 300  # noqa: PLR2004 - successful responses with a body
        and response.status_code != 204  # noqa: PLR2004 - no content
        and "Content-Encoding" not in response.headers
        and (response.mimetype or "").startswith(_TEXT)
    )


def _compressed_chunks(chunks: Iterable[str], encoding: Encoding) -> Iterator[bytes]:
    if encoding == "zstd":
        stream, block = zstandard.ZstdCompressor(_FAST[0]).compressobj(), zstandard.COMPRESSOBJ_FLUSH_BLOCK
    else:
        stream, block = zlib.compressobj(_FAST[1], wbits=_GZIP_WINDOW), zlib.Z_SYNC_FLUSH
    with contextlib.closing(cast("Iterator[str]", chunks)) as chunks_to_compress:  # type: ignore[type-var]
        for chunk in chunks_to_compress:
            yield stream.compress(chunk.encode()) + stream.flush(block)
    yield stream.flush()
