"""Sending bodies over HTTP, as they came: protobuf as protobuf, JSON as JSON.

Source: OpenTelemetry protocol specification, "OTLP/HTTP Response": 429, 502, 503 and 504 may be sent again, after what
Retry-After says; other failures are of the body, and would be the same again. Beside those, 408 is sent again (the body came
too slowly), and so is what 401, 403 and redirects are the answer to: they are about our settings, and no body is lost for them.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus

import httpx
from google.protobuf.message import DecodeError
from google.rpc.status_pb2 import Status

from ...core.egress.addresses import MayCall, NotCalledError
from ...core.egress.transport import CheckedTransport, proxy_of
from ...store.outgoing import Outgoing
from ..otlp.responses import JSON
from .config import Destination
from .headers import AGENT
from .outcome import Later, Outcome, Refused, inflated, shown, taken

_AGAIN = frozenset({408, 429, 502, 503, 504})
_OURS_TO_MEND = frozenset({401, 403})
_CURES = {401: "look at its headers", 403: "look at its headers", 404: "look at its endpoint and signals"}
# No destination has more to say.
_MAX_ANSWER_BYTES = 64 * 1024


class HttpCalls:
    """The way to a destination over HTTP; its TLS files are read now.

    Args:
        destination: Whom to send to.
        may_call: Whom it may be.

    Raises:
        OSError: The TLS files cannot be used.
    """

    def __init__(self, destination: Destination, may_call: MayCall) -> None:
        url = httpx.URL(destination.endpoint)
        verify = url.scheme == "https" and destination.tls.context()
        transport = CheckedTransport(may_call, verify=verify, proxy=proxy_of(url))
        self._destination = destination
        self._client = httpx.AsyncClient(transport=transport, trust_env=False, timeout=None)  # noqa: S113 - see `post`

    async def post(self, body: Outgoing, headers: Mapping[str, str]) -> Outcome:
        """Send *body* with *headers*."""
        content, encoding = _encoded(body, self._destination.compression)
        sent = {**headers, "Content-Type": body.media_type, "User-Agent": AGENT, "Accept-Encoding": "identity"}
        if encoding:
            sent["Content-Encoding"] = encoding
        url = f"{self._destination.endpoint}/v1/{body.signal}"
        try:
            async with (
                asyncio.timeout(self._destination.timeout),
                self._client.stream("POST", url, content=content, headers=sent) as response,
            ):
                answer = bytearray()
                async for piece in response.aiter_raw():
                    answer += piece
                    if len(answer) > _MAX_ANSWER_BYTES:
                        break
                return _judged(response, body.signal, bytes(answer), headers)
        except NotCalledError as error:
            return Later(str(error))
        except TimeoutError:
            return Later(f"it does not answer within {self._destination.timeout:g} s")
        except httpx.HTTPError as error:
            return Later(f"it cannot be reached ({str(error) or type(error).__name__})")

    async def aclose(self) -> None:
        """Close its connections."""
        await self._client.aclose()


def _encoded(body: Outgoing, compression: str) -> tuple[bytes, str]:
    match compression:
        case "zstd":
            return body.body, "zstd"
        case "gzip":
            return zlib.compress(inflated(body), 1, 16 + zlib.MAX_WBITS), "gzip"
        case _:
            return inflated(body), ""


def _judged(response: httpx.Response, signal: str, answer: bytes, headers: Mapping[str, str]) -> Outcome:
    if response.is_success:
        is_json = response.headers.get("content-type", "").partition(";")[0].strip() == JSON
        return taken(signal, answer, headers, is_json=is_json)
    status = response.status_code
    said = shown(_words(response, answer), headers)
    text = f"it answers {status}" + (f": {said}" if said else "")
    if cure := _CURES.get(status):
        text = f"{text}; {cure}"
    if response.is_redirect:
        return Later(f"it redirects elsewhere ({status}), which is not followed; write the address it redirects to")
    if status in _AGAIN | _OURS_TO_MEND:
        return Later(text, _retry_after(response))
    return Refused(text, "returned" if status == HTTPStatus.LOOP_DETECTED else "refused")


def _words(response: httpx.Response, answer: bytes) -> str:
    """Return why it says it failed."""
    if "protobuf" in response.headers.get("content-type", ""):
        try:
            return Status.FromString(answer).message
        except DecodeError:
            return ""
    return answer.decode(errors="replace")


def _retry_after(response: httpx.Response) -> float | None:
    text = response.headers.get("retry-after", "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        return max(0.0, (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError, OverflowError):
        return None
