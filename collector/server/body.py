"""The body of a request, inflated, and never further than the limit allows."""

from __future__ import annotations

import zlib

import zstandard

from ...core.errors import WireError
from ..otlp.model import TooLargeError, UnsupportedError

# zlib's name for "a gzip header and trailer must be there".
_GZIP = 16 + zlib.MAX_WBITS
# RFC 9659: what is sent over HTTP needs a window of no more than 8 MB. A frame that asks for more is not begun.
MAX_WINDOW_BYTES = 8 * 1024**2
# RFC 8878: a block takes at least 4 bytes and becomes 128 KiB at most.
_MOST_INFLATED_A_BYTE = 128 * 1024 // 4
_LEAST_PIECE_BYTES = 64


def encoding_of(body: bytes) -> str:
    """Return how *body*, a protobuf message, was compressed: gRPC does not tell, and no message begins as gzip does."""
    return "gzip" if body.startswith(b"\x1f\x8b") else "identity"


def inflate(body: bytes, encoding: str, limit_bytes: int) -> bytes:
    """Return *body* as it was before its Content-Encoding was applied.

    Args:
        body: As received.
        encoding: The Content-Encoding header; "" and "identity" mean none.
        limit_bytes: The most the result may hold.

    Raises:
        UnsupportedError: *encoding* is none the collector reads.
        TooLargeError: The result would be larger than *limit_bytes*; no more than that, and 2 MiB, was inflated.
        WireError: *body* is not what *encoding* says, ends early, or goes on after its end.
    """
    match encoding.strip().lower():
        case "" | "identity":
            inflated = body
        case "gzip" | "x-gzip":
            inflated = _gunzip(body, limit_bytes)
        case "zstd":
            inflated = _unzstd(body, limit_bytes)
        case _:
            msg = f"Content-Encoding {encoding[:40]!r} is not supported; send gzip, zstd or identity"
            raise UnsupportedError(msg)
    _check_size(len(inflated), limit_bytes)
    return inflated


def _gunzip(body: bytes, limit_bytes: int) -> bytes:
    stream = zlib.decompressobj(_GZIP)
    try:
        inflated = stream.decompress(body, limit_bytes + 1)
    except zlib.error as error:
        msg = f"the body is not valid gzip ({error})"
        raise WireError(msg) from error
    if len(inflated) <= limit_bytes:
        _check_end("gzip stream", stream.eof, len(body), len(stream.unused_data))
    return inflated


def _unzstd(body: bytes, limit_bytes: int) -> bytes:
    stream = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES).decompressobj()
    pieces: list[bytes] = []
    at = inflated = 0
    try:
        if body:
            _check_size(zstandard.frame_content_size(body), limit_bytes)  # -1 where it does not say
        while at < len(body) and not stream.eof and inflated <= limit_bytes:
            # A piece gives out all it holds at once, so it may be no larger than there is room for.
            end = at + max((limit_bytes - inflated) // _MOST_INFLATED_A_BYTE, _LEAST_PIECE_BYTES)
            pieces.append(stream.decompress(body[at:end]))
            inflated += len(pieces[-1])
            at = min(end, len(body))
    except zstandard.ZstdError as error:
        msg = f"the body is not valid zstd, or needs a window of more than {MAX_WINDOW_BYTES} bytes ({error})"
        raise WireError(msg) from error
    if inflated <= limit_bytes:
        _check_end("zstd frame", stream.eof, len(body), len(body) - at + len(stream.unused_data))
    return b"".join(pieces)


def _check_size(size_bytes: int, limit_bytes: int) -> None:
    if size_bytes > limit_bytes:
        msg = f"the body is larger than {limit_bytes} bytes once inflated; send smaller batches"
        raise TooLargeError(msg)


def _check_end(what: str, ended: bool, size_bytes: int, left_bytes: int) -> None:
    if not ended:
        msg = f"the {what} ends early, after {size_bytes} bytes"
        raise WireError(msg)
    if left_bytes:
        msg = f"{left_bytes} bytes follow the end of the {what}; send one {what.split()[1]} a request"
        raise WireError(msg)
