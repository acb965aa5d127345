"""What became of an export's points or spans: how many were believed, passed over, refused, and why."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

# A batch may hold thousands of bad points; the first few say what is wrong with the sender.
MAX_MESSAGES = 5


class Reason(StrEnum):
    """What was wrong with a point or a trace; a label of the collector's own metrics."""

    TYPE = "type"
    TEMPORALITY = "temporality"
    TIME = "time"
    SCALE = "scale"
    BUCKETS = "buckets"
    COUNT = "count"
    NEGATIVE = "negative"
    SUM = "sum"
    NUMBER = "number"
    STATUS = "status"
    STAGE = "stage"
    IDS = "ids"
    PARENT = "parent"
    DURATION = "duration"
    PARTITION = "partition"
    SIZE = "size"


class RejectedError(Exception):
    """One data point or one trace cannot be believed; the rest of its batch can.

    Args:
        reason: What kind of thing was wrong.
        message: What exactly, and the cure where it is not plain.
    """

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(slots=True)
class Tally:
    """The count of one export.

    Args:
        ignored: Points of metrics, or spans of scopes, Stagelens does not keep.
        rejected: Points or spans refused, by reason.
        messages: The first `MAX_MESSAGES` explanations.
        unexplained: How many explanations came after those.
    """

    ignored: int = 0
    rejected: Counter[Reason] = field(default_factory=Counter[Reason])
    messages: list[str] = field(default_factory=list[str])
    unexplained: int = 0

    def reject(self, reason: Reason, message: str, count: int = 1) -> None:
        """Count *count* points or spans as refused for *reason*, explained by *message*."""
        if count == 0:
            return
        self.rejected[reason] += count
        self.explain(message)

    def explain(self, message: str) -> None:
        """Add *message* to what the sender is told."""
        if len(self.messages) < MAX_MESSAGES:
            self.messages.append(message)
        else:
            self.unexplained += 1

    @property
    def error_message(self) -> str:
        """The explanations as one text for the sender."""
        more = [f"and {self.unexplained} more"] if self.unexplained else []
        return "; ".join([*self.messages, *more])
