"""The channel contract: `send(message)` returns once the receiver accepted the message, or raises ChannelError.

A channel knows the payload and the rules of its receiver. The outbox decides when, how often and in which order to send.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ...core.errors import ChannelError
from ...core.settings.yaml_config import Fields, Secrets
from .message import Message

# A part of an error message, and what to do about that error.
Hint = tuple[str, str]
COMMON_HINTS: Sequence[Hint] = (
    ("Name or service not known", "The name of the host is not known here: check it, and the DNS of this machine."),
    ("Temporary failure in name resolution", "Names cannot be looked up here: check the DNS of this machine."),
    ("refused", "Nothing listens there: check host and port, and whether a firewall refuses."),
    ("cannot be reached", "Check the address, and whether this machine may go out (firewall, proxy: HTTPS_PROXY)."),
    ("answered 429", "The receiver wants fewer messages; the outbox waits as long as it asks."),
    ("gave no answer", "The receiver took it and said nothing: see there whether it arrived."),
    ("is not one", "Write the whole address, with https:// in front."),
)


@dataclass(frozen=True, slots=True)
class Refresh:
    """Repetition of messages for a receiver that forgets.

    Args:
        every_seconds: Repetition interval. [seconds]
        after_end_seconds: Duration of the repetition after the end of an incident. [seconds]
    """

    every_seconds: float
    after_end_seconds: float


class Channel(Protocol):
    """A channel."""

    @property
    def name(self) -> str:
        """Name in the outbox and on the dashboard."""
        ...

    @property
    def gap_seconds(self) -> float:
        """Minimum time between two messages by the receiver's rate limit, in seconds."""
        ...

    @property
    def refresh(self) -> Refresh | None:
        """Repetition of the last message; None if the receiver does not need it."""
        ...

    def send(self, message: Message) -> str:
        """Deliver *message*.

        Returns:
            Reference for the next message of the incident, such as a thread; empty for none.

        Raises:
            ChannelError: It was not accepted; `permanent` if a retry is useless.
            OutcomeUnknownError: It may have been accepted.
        """
        ...


class OutcomeUnknownError(ChannelError):
    """The request was sent without a response: the receiver may have processed it."""

    def __init__(self, message: str) -> None:
        super().__init__(message, permanent=False)


class HeartbeatReceiver(Protocol):
    """A receiver of heartbeats."""

    @property
    def name(self) -> str:
        """Name of the channel in the SLO file."""
        ...

    def ping(self) -> None:
        """Send one heartbeat.

        Raises:
            ChannelError: The receiver cannot be reached, or refused it.
        """
        ...


@dataclass(frozen=True, slots=True)
class ParsedChannel:
    """Result of reading the settings of one channel.

    Args:
        channel: The channel; None for a heartbeat.
        heartbeat: The heartbeat receiver; None for all other kinds.
        signing_secret: Secret that verifies actions sent back by the receiver; empty where there are none.
    """

    channel: Channel | None = None
    heartbeat: HeartbeatReceiver | None = None
    signing_secret: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class ChannelKind:
    """One kind of channel.

    Args:
        read: Reads the settings of a channel with the given name; what is wrong is added to the problems of the file.
        hints: What to do about errors of its receiver.
    """

    read: Callable[[Fields, str, Secrets], ParsedChannel]
    hints: Sequence[Hint]


def find_hint(error: str, hints: Sequence[Hint]) -> str:
    """Return what to do about *error*: the first of *hints*, or else of `COMMON_HINTS`, that applies; "" if none does.

    >>> find_hint("PagerDuty answered 404", [("answered 404", "Set base_url.")])
    'Set base_url.'
    """
    return next((advice for part, advice in (*hints, *COMMON_HINTS) if part in error), "")
