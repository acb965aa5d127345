"""The contract of a channel: `send(message)` returns when the receiver accepted the message, or raises ChannelError.

A channel is only a payload and the receiver's rules; when to send, how often and in which order is the outbox's business.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ...core.errors import ChannelError
from .message import Message


@dataclass(frozen=True, slots=True)
class Refresh:
    """How a receiver that forgets wants to be reminded.

    Args:
        every_seconds: How often what it took is to be sent again. [seconds]
        after_end_seconds: How long after an incident is over. [seconds]
    """

    every_seconds: float
    after_end_seconds: float


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

    @property
    def refresh(self) -> Refresh | None:
        """How often the receiver must hear of an incident that goes on; None where once is enough."""
        ...

    def send(self, message: Message) -> str:
        """Deliver *message*.

        Returns:
            What the channel wants to be told with the next message of the incident, such as a thread; empty for nothing.

        Raises:
            ChannelError: It was not accepted; `permanent` when trying again is useless.
            OutcomeUnknownError: It may have been.
        """
        ...


class OutcomeUnknownError(ChannelError):
    """The request was sent and no answer came: the receiver may have taken it."""

    def __init__(self, message: str) -> None:
        super().__init__(message, permanent=False)
