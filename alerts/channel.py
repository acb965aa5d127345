"""The contract of a channel: `send(message)` returns when the receiver accepted it, or raises ChannelError.

A channel is only a payload and the receiver's rules; when to send, how often and in which order is the outbox's business.
"""

from __future__ import annotations

from typing import Protocol

import httpx

from ..core.errors import ChannelError
from .message import Message

# The receiver has this long for each step: to be reached, to take the request, to answer. [seconds]
TIMEOUT = httpx.Timeout(8.0, connect=4.0)
# Other 4xx answers mean that the same request will be refused again.
TRANSIENT_4XX = frozenset({408, 409, 425, 429})
# What a receiver says is shown to people; a page of HTML is not.
MAX_ANSWER_CHARS = 200


class Channel(Protocol):
    """Where messages go."""

    @property
    def name(self) -> str:
        """What the outbox and the dashboard call it."""
        ...

    @property
    def gap_seconds(self) -> float:
        """The least time between two messages, by the receiver's rate limit, in seconds."""
        ...

    def send(self, message: Message) -> None:
        """Deliver *message*.

        Raises:
            ChannelError: It was not accepted; `permanent` when trying again is useless.
            OutcomeUnknownError: It may have been.
        """
        ...


class OutcomeUnknownError(ChannelError):
    """The request was sent and no answer came: the receiver may have taken it."""

    def __init__(self, message: str) -> None:
        super().__init__(message, permanent=False)


def post(url: str, body: bytes, headers: dict[str, str], *, receiver: str) -> httpx.Response:
    """Post *body* to *url* and return the 2xx answer.

    Args:
        url: Where; never part of an error, because it may be a secret.
        body: What, JSON.
        headers: Beside the content type.
        receiver: The name of the receiver, for errors.

    Raises:
        ChannelError: There was no 2xx answer.
    """
    try:
        answer = httpx.post(url, content=body, headers={"Content-Type": "application/json", **headers}, timeout=TIMEOUT)
    except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
        msg = f"{receiver} cannot be reached: {error}"
        raise ChannelError(msg, permanent=False) from error
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        msg = f"{receiver}: the address is not one"
        raise ChannelError(msg, permanent=True) from error
    except httpx.HTTPError as error:
        msg = f"{receiver} took the request and gave no answer: {type(error).__name__}"
        raise OutcomeUnknownError(msg) from error
    if answer.is_success:
        return answer
    raise _refused(answer, receiver)


def _refused(answer: httpx.Response, receiver: str) -> ChannelError:
    said = " ".join(answer.text.split())[:MAX_ANSWER_CHARS]
    permanent = not answer.is_server_error and answer.status_code not in TRANSIENT_4XX
    return ChannelError(
        f"{receiver} answered {answer.status_code}" + (f": {said}" if said else ""),
        permanent=permanent,
        retry_after_seconds=_retry_after(answer),
    )


def _retry_after(answer: httpx.Response) -> float | None:
    """Return the wait asked for in seconds; the form with a date is not used by the receivers we know."""
    text = answer.headers.get("Retry-After", "")
    return float(text) if text.strip().isdigit() else None
