"""Exceptions whose text is shown to users.

    StagelensError
    ├── ConfigError    a setting or file is wrong: names the file, the key, the value and the fix
    ├── WireError      a payload violates OTLP: names the field
    ├── StoreError     a database operation failed: names the database and the fix
    └── ChannelError   a notification could not be delivered; `permanent` shows whether a retry is useless

None of these is raised in the user's process, because the agent fails open.
"""

from __future__ import annotations


class StagelensError(Exception):
    """Base class of the expected errors of Stagelens; the text is written for the user."""


class ConfigError(StagelensError):
    """A setting or a configuration file is invalid."""


class WireError(StagelensError):
    """A payload, or one data point of it, is not valid OTLP."""


class StoreError(StagelensError):
    """The store cannot be opened, read or written."""


class ChannelError(StagelensError):
    """A notification was not delivered; the receiver may have requested a delay of the retry, which is useless if *permanent*."""

    def __init__(self, message: str, *, permanent: bool, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.permanent = permanent
        self.retry_after_seconds = retry_after_seconds
