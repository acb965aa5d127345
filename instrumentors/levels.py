"""What the agent records, from all to nothing, and what the requests were like that it recorded so much of."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.names import AGENT_LEVELS

# Positions in `AGENT_LEVELS`.
ALL, NO_TRACES, NO_FACTS, REQUESTS_ONLY, NOTHING = range(len(AGENT_LEVELS))


@dataclass(slots=True)
class Load:
    """Requests added up.

    Args:
        requests: How many.
        marks: What was written down of them: stages and facts.
        duration_ns: How long they took together. [nanoseconds]
    """

    requests: int = 0
    marks: int = 0
    duration_ns: int = 0

    def include(self, other: Load) -> None:
        """Add the requests of *other*."""
        self.requests += other.requests
        self.marks += other.marks
        self.duration_ns += other.duration_ns

    def since(self, before: Load) -> Load:
        """Return those that were added since it was *before*."""
        return Load(self.requests - before.requests, self.marks - before.marks, self.duration_ns - before.duration_ns)
