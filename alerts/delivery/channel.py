"""Interface of notification channels, and the HTTP client that most channels use.

`send(message)` returns after the receiver accepted the message, or raises ChannelError. A channel defines the payload and knows
the rules of its receiver. The outbox decides when, how often and in which order to send.

`send_request` sends one request with limits of time and size, because a receiver may be slow, broken or hostile. Error texts
contain no secrets.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import ssl
from abc import abstractmethod
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Protocol, runtime_checkable
from urllib.parse import urlsplit

import httpx
from pydantic import Field

from ...core.egress import CheckedTransport, EgressDeniedError, EgressPolicy
from ...core.errors import ChannelError
from ...core.proxies import ProxyError, proxy_of, through_proxy
from ...core.settings.field_types import Secret, Text
from ...core.settings.section import Section
from ..formatting import line
from .message import Message

# Part of an error message, and the fix for that error.
Hint = tuple[str, str]
COMMON_HINTS: Sequence[Hint] = (
    ("Name or service not known", "The host name cannot be resolved: check the name and the DNS of this machine."),
    ("Temporary failure in name resolution", "DNS lookups fail: check the DNS of this machine."),
    ("refused", "Nothing listens at that address: check host, port and firewall."),
    ("cannot be reached", "Check the address and outbound access of this machine (firewall, proxy: HTTPS_PROXY)."),
    ("responded 429", "The receiver limits the rate of messages; the outbox retries after the requested delay."),
    ("sent no response", "The receiver sent no response: check there whether the message arrived."),
    ("is not valid", "Write the full URL, starting with https://."),
)
# Deadline for the whole exchange; shorter than the lease of an outbox row. [seconds]
DEADLINE_SECONDS = 20.0
# Size limit of a response. [bytes]
MAX_ANSWER_BYTES = 4_000_000
# Temporary 4xx responses; all others are permanent errors.
TRANSIENT_4XX = frozenset({408, 409, 425, 429})
# Maximum length of a response text in an error.
MAX_SHOWN_CHARS = 200
# Shorter parts of a URL are not secrets, and would be redacted inside unrelated words.
MIN_SECRET_CHARS = 10


@dataclass(frozen=True, slots=True)
class Refresh:
    """Repetition of messages for a receiver that drops alerts unless they are sent again."""

    every_seconds: float
    after_end_seconds: float


class Channel(Protocol):
    """Interface of a notification channel."""

    @property
    def name(self) -> str:
        """Name of the channel in the outbox and on the dashboard."""
        ...

    @property
    def gap_seconds(self) -> float:
        """Minimum time between two messages that the receiver's rate limit permits, in seconds."""
        ...

    @property
    def refresh(self) -> Refresh | None:
        """Repetition of the last message; None if the receiver needs no repetition."""
        ...

    def send(self, message: Message) -> str:
        """Deliver *message*.

        Returns:
            Reference for the next message of the incident, such as the id of a thread; empty for none.

        Raises:
            ChannelError: The receiver did not accept the message; `permanent` if a retry is useless.
            OutcomeUnknownError: The receiver may have accepted the message.
        """
        ...


class OutcomeUnknownError(ChannelError):
    """A request was sent and no response arrived: the receiver may have processed the request."""

    def __init__(self, message: str) -> None:
        super().__init__(message, permanent=False)


@runtime_checkable
class HeartbeatReceiver(Protocol):
    @property
    def name(self) -> str: ...

    def ping(self) -> None: ...


class SigningSecret(Secret):
    """Secret that verifies the requests of the receiver for user actions."""


class ChannelSection(Section):
    """Settings of a channel in the SLO file; each kind has a subclass with its own keys."""

    kind: Text
    name: Text = Field(default="", max_length=64)

    @abstractmethod
    def build(self, name: str) -> Channel | HeartbeatReceiver:
        """Return the channel or heartbeat receiver with these settings, called *name*."""


@dataclass(frozen=True, slots=True)
class ChannelKind:
    """One kind of channel, such as Slack."""

    section: type[ChannelSection]
    hints: Sequence[Hint]
    variants: Mapping[str, type[ChannelSection]] = field(default_factory=dict[str, type[ChannelSection]])


def find_hint(error: str, hints: Sequence[Hint]) -> str:
    """Return the fix for *error*: the first matching one of *hints*, or else of `COMMON_HINTS`; "" if none matches.

    >>> find_hint("PagerDuty responded 404", [("responded 404", "Set base_url.")])
    'Set base_url.'
    """
    return next((advice for part, advice in (*hints, *COMMON_HINTS) if part in error), "")


# Timeout of each step of a request: connect, send, receive. [seconds]
TIMEOUT = httpx.Timeout(8.0, connect=4.0)


@dataclass(frozen=True, slots=True)
class ReceiverResponse:
    status: int
    headers: httpx.Headers
    body: bytes

    @property
    def text(self) -> str:
        """Body as text; invalid UTF-8 is replaced."""
        return self.body.decode(errors="replace")

    @property
    def accepted(self) -> bool:
        return httpx.codes.is_success(self.status)

    @property
    def retry_after_seconds(self) -> float | None:
        text = self.headers.get("Retry-After", "").strip()
        if text.replace(".", "", 1).isdecimal():
            return float(text)
        try:
            return max(0.0, (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds())
        except (ValueError, TypeError, OverflowError):
            return None


def encode_json(payload: object) -> bytes:
    r"""Return *payload* as JSON in UTF-8; unpaired surrogates, which UTF-8 cannot contain, become "?".

    >>> encode_json({"name": "a\ud800"})
    b'{"name": "a?"}'
    """
    return json.dumps(payload, ensure_ascii=False).encode(errors="replace")


def post_json(
    url: str, body: bytes, headers: dict[str, str], *, receiver: str, secrets: Sequence[str] = ()
) -> ReceiverResponse:
    """Post *body* and return the 2xx response; the content type is JSON unless *headers* define another."""
    response = send_request("POST", url, body, {"Content-Type": "application/json", **headers}, receiver=receiver)
    if response.accepted:
        return response
    raise refusal_error(response, receiver, (*secret_parts(url), *secrets))


def send_request(method: str, url: str, body: bytes, headers: dict[str, str], *, receiver: str) -> ReceiverResponse:
    """Send one request and return the response with any status.

    Environment variables define the egress allow-list and the proxies.
    """
    try:
        return _run_coroutine(_exchange(method, httpx.URL(url), body, headers, receiver))
    except (EgressDeniedError, ProxyError) as error:
        # Not permanent: the name may resolve differently, or the setting may be fixed.
        msg = f"{receiver} was not contacted: {error}"
        raise ChannelError(msg, permanent=False) from error
    except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
        msg = f"{receiver} cannot be reached{through_proxy(url)}: {_os_reason(error)}"
        raise ChannelError(msg, permanent=False) from error
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        msg = f"{receiver}: the URL is not valid"
        raise ChannelError(msg, permanent=True) from error
    except httpx.HTTPError as error:
        msg = f"{receiver} received the request and sent no response: {type(error).__name__}"
        raise OutcomeUnknownError(msg) from error


def refusal_error(response: ReceiverResponse, receiver: str, secrets: Sequence[str] = ()) -> ChannelError:
    text = redact(response.text, secrets)
    transient = httpx.codes.is_server_error(response.status) or response.status in TRANSIENT_4XX
    return ChannelError(
        f"{receiver} responded {response.status}" + (f": {text}" if text else ""),
        permanent=not transient,
        retry_after_seconds=response.retry_after_seconds,
    )


def redact(text: str, secrets: Sequence[str] = ()) -> str:
    """Return the response text of a receiver as one short line without *secrets*.

    >>> redact("Cannot POST /services/T0/B0/x1y2z3", ["/services/T0/B0/x1y2z3"])
    'Cannot POST …'
    """
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= MIN_SECRET_CHARS:
            text = text.replace(secret, "…")
    return line(text, MAX_SHOWN_CHARS)


def _os_reason(error: BaseException) -> str:
    """Return the error text of the operating system if there is one, because it is more precise than that of *error*."""
    cause: BaseException | None = error
    while cause is not None:
        # Error numbers of TLS and name lookup are no error numbers of the operating system.
        if isinstance(cause, OSError) and not isinstance(cause, ssl.SSLError | socket.gaierror) and cause.errno:
            return os.strerror(cause.errno)
        cause = cause.__cause__ or cause.__context__
    return str(error)


def _run_coroutine(task: Coroutine[Any, Any, ReceiverResponse]) -> ReceiverResponse:
    """Run *task* in a new event loop.

    Unlike `asyncio.run`, this function does not wait for a name lookup that is still in progress in a thread.
    """
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(task)
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


async def _exchange(
    method: str, url: httpx.URL, body: bytes, headers: dict[str, str], receiver: str
) -> ReceiverResponse:
    transport = CheckedTransport(EgressPolicy.from_env(os.environ), proxy=proxy_of(str(url)) or None)
    steps = list[str]()

    async def trace(step: str, _: object) -> None:
        steps.append(step)

    request = httpx.Request(
        method, url, content=body, headers={**headers, "Accept-Encoding": "identity"}, extensions={"trace": trace}
    )
    try:
        async with asyncio.timeout(DEADLINE_SECONDS), httpx.AsyncClient(transport=transport, timeout=TIMEOUT) as client:
            response = await client.send(request, stream=True)
            return ReceiverResponse(response.status_code, response.headers, await _read_body(response, receiver))
    except TimeoutError as error:
        if "http11.send_request_headers.started" in steps:
            msg = f"{receiver} received the request and sent no response within {DEADLINE_SECONDS:g} s"
            raise OutcomeUnknownError(msg) from error
        msg = f"{receiver} cannot be reached within {DEADLINE_SECONDS:g} s"
        raise ChannelError(msg, permanent=False) from error


async def _read_body(response: httpx.Response, receiver: str) -> bytes:
    """Return the body without decompressing it; raise OutcomeUnknownError if it exceeds the size limit."""
    body = bytearray()
    async for piece in response.aiter_raw():
        body += piece
        if len(body) > MAX_ANSWER_BYTES:
            msg = f"{receiver} received the request and its response does not end"
            raise OutcomeUnknownError(msg)
    return bytes(body)


def secret_parts(url: str) -> list[str]:
    """Return the parts of a URL that may be secret; a receiver may repeat any of them in its response."""
    split = urlsplit(url)
    whole = [url, split.path, f"{split.path}?{split.query}", split.query]
    return [*whole, *split.path.split("/"), split.password or ""]
