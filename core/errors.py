"""The errors a person may meet, one small tree.

    StagelensError
    ├── ConfigError    a setting or file is wrong: it names the file, the key, the value and the cure
    ├── WireError      a payload is not what OTLP allows: it names the field
    ├── StoreError     the database cannot do what was asked: it names the database and the cure
    └── ChannelError   a notification could not be delivered; `permanent` says whether to try again

None of them is ever raised into the user's own process: the agent fails open.
"""

from __future__ import annotations


class StagelensError(Exception):
    """Any error Stagelens raises on purpose; its text is written for the person who reads it."""


class ConfigError(StagelensError):
    """A setting or a configuration file is wrong."""


class WireError(StagelensError):
    """A payload, or one data point of it, is not valid OTLP."""


class StoreError(StagelensError):
    """The store cannot be opened, read or written."""


class ChannelError(StagelensError):
    """A notification was not delivered.

    Args:
        message: What the receiver said.
        permanent: Whether trying again is useless.
        retry_after_seconds: How long the receiver asked us to wait, if it said so. [seconds]
    """

    def __init__(self, message: str, *, permanent: bool, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.permanent = permanent
        self.retry_after_seconds = retry_after_seconds
