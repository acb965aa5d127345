"""Content encodings of bodies, inflated within a limit."""

from __future__ import annotations

import re
import zlib
from contextlib import suppress

import zstandard

from ...core.errors import WireError
from ...core.names import ENVIRONMENT, SERVICE_NAME
from ..otlp.model import Attributes, BodyTooLargeError, UnsupportedError

# zlib's name for "a gzip header and trailer must be there".
_GZIP = 16 + zlib.MAX_WBITS
# RFC 9659: content sent over HTTP needs a window of at most 8 MB. A frame that asks for more is refused.
MAX_WINDOW_BYTES = 8 * 1024**2
# RFC 8878: a block has at least 4 bytes and inflates to at most 128 KiB.
_MAX_INFLATED_PER_BYTE = 128 * 1024 // 4
_MIN_CHUNK_BYTES = 64
# Start of a body that is searched for its service: the first resource of an export is at its start. [bytes]
HEAD_BYTES = 16 * 1024
# Attributes with a text, in JSON and in protobuf: KeyValue {key = 1, value = 2: AnyValue {string_value = 1}}.
_IN_JSON = rb'"%s"\s*,\s*"value"\s*:\s*\{\s*"stringValue"\s*:\s*"([^"\\]{1,200})"'
_IN_PROTOBUF = rb"\x0a%c%s\x12[\x03-\x7f]\x0a([\x01-\x7d])"


def encoding_of(body: bytes) -> str:
    """Return the encoding of *body*, a gRPC message: gRPC does not report it, and no protobuf message starts like gzip."""
    return "gzip" if body.startswith(b"\x1f\x8b") else "identity"


def inflate(body: bytes, encoding: str, limit_bytes: int) -> bytes:
    """Return *body* without its Content-Encoding; of a too large one, at most *limit_bytes* and 2 MiB are inflated."""
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
    _check_inflated_size(len(inflated), limit_bytes)
    return inflated


def _gunzip(body: bytes, limit_bytes: int) -> bytes:
    stream = zlib.decompressobj(_GZIP)
    try:
        inflated = stream.decompress(body, limit_bytes + 1)
    except zlib.error as error:
        msg = f"the body is not valid gzip ({error})"
        raise WireError(msg) from error
    if len(inflated) <= limit_bytes:
        _check_stream_end("gzip stream", stream.eof, len(body), len(stream.unused_data))
    return inflated


def _unzstd(body: bytes, limit_bytes: int) -> bytes:
    stream = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES).decompressobj()
    pieces: list[bytes] = []
    at = inflated = 0
    try:
        if body:
            _check_inflated_size(zstandard.frame_content_size(body), limit_bytes)  # -1 for unknown
        while at < len(body) and not stream.eof and inflated <= limit_bytes:
            # A chunk inflates at once, so its size is limited by the remaining capacity.
            end = at + max((limit_bytes - inflated) // _MAX_INFLATED_PER_BYTE, _MIN_CHUNK_BYTES)
            pieces.append(stream.decompress(body[at:end]))
            inflated += len(pieces[-1])
            at = min(end, len(body))
    except zstandard.ZstdError as error:
        msg = f"the body is not valid zstd, or needs a window of more than {MAX_WINDOW_BYTES} bytes ({error})"
        raise WireError(msg) from error
    if inflated <= limit_bytes:
        _check_stream_end("zstd frame", stream.eof, len(body), len(body) - at + len(stream.unused_data))
    return b"".join(pieces)


def _check_inflated_size(size_bytes: int, limit_bytes: int) -> None:
    if size_bytes > limit_bytes:
        msg = f"the body is larger than {limit_bytes} bytes once inflated; send smaller batches"
        raise BodyTooLargeError(msg)


def _check_stream_end(what: str, ended: bool, size_bytes: int, left_bytes: int) -> None:
    if not ended:
        msg = f"the {what} ends early, after {size_bytes} bytes"
        raise WireError(msg)
    if left_bytes:
        msg = f"{left_bytes} bytes follow the end of the {what}; send one {what.split()[1]} a request"
        raise WireError(msg)


def resource_in(head: bytes, encoding: str) -> Attributes:
    """Return service and environment of the first resource of an export that cannot be read, from the *head* of its body."""
    with suppress(zlib.error, zstandard.ZstdError):
        if "gzip" in encoding.lower():
            head = zlib.decompressobj(_GZIP).decompress(head, HEAD_BYTES)
        elif encoding.strip().lower() == "zstd":
            # A block inflates at once, to at most 128 KiB; most services are named in the first one.
            stream = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES).decompressobj()
            head = stream.decompress(head)
    return {key: text for key in (SERVICE_NAME, ENVIRONMENT) if (text := _text_of(head[:HEAD_BYTES], key.encode()))}


def _text_of(head: bytes, key: bytes) -> str:
    if match := re.search(_IN_JSON % re.escape(key), head):
        return match[1].decode(errors="replace")
    if match := re.search(_IN_PROTOBUF % (len(key), re.escape(key)), head, re.DOTALL):
        return head[match.end() : match.end() + match[1][0]].decode(errors="replace")
    return ""
