"""The body of a request, inflated, and never further than the limit allows."""

from __future__ import annotations

import zlib

from ..core.errors import WireError
from .wire import TooLargeError, UnsupportedError

# zlib's name for "a gzip header and trailer must be there".
_GZIP = 16 + zlib.MAX_WBITS


def inflate(body: bytes, encoding: str, limit_bytes: int) -> bytes:
    """Return *body* as it was before its Content-Encoding was applied.

    Args:
        body: As received.
        encoding: The Content-Encoding header; "" and "identity" mean none.
        limit_bytes: The most the result may hold.

    Raises:
        UnsupportedError: *encoding* is none the collector reads.
        TooLargeError: The result would be larger than *limit_bytes*; no more than that was inflated.
        WireError: *body* is not what *encoding* says, or ends early.
    """
    match encoding.strip().lower():
        case "" | "identity":
            inflated = body
        case "gzip" | "x-gzip":
            inflated = _gunzip(body, limit_bytes)
        case _:
            msg = f"Content-Encoding {encoding[:40]!r} is not supported; send gzip or identity"
            raise UnsupportedError(msg)
    if len(inflated) > limit_bytes:
        msg = f"the body is larger than {limit_bytes} bytes once inflated; send smaller batches"
        raise TooLargeError(msg)
    return inflated


def _gunzip(body: bytes, limit_bytes: int) -> bytes:
    stream = zlib.decompressobj(_GZIP)
    try:
        inflated = stream.decompress(body, limit_bytes + 1)
    except zlib.error as error:
        msg = f"the body is not valid gzip ({error})"
        raise WireError(msg) from error
    if len(inflated) <= limit_bytes and not stream.eof:
        msg = f"the gzip stream ends early, after {len(body)} bytes"
        raise WireError(msg)
    if stream.unused_data:
        msg = f"{len(stream.unused_data)} bytes follow the end of the gzip stream; send one stream a request"
        raise WireError(msg)
    return inflated
