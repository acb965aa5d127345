"""What holds requests up from below their code: stalls lie on top of stages, and say why those took so long."""

from __future__ import annotations

from dataclasses import dataclass

from .stages import OVERHEAD


@dataclass(frozen=True, slots=True)
class StallCause:
    """A reason why requests made no progress.

    Args:
        key: The name on the wire and in the store.
        label: What a span that met it is marked with.
        told: How a sentence about it begins; a duration follows.
    """

    key: str
    label: str
    told: str


# A garbage collection stops every thread of the interpreter.
STALL_GC = StallCause("gc", "GC pause", "GC explains")
# An event loop did not get round to its callbacks: one kept it from all others, or its thread could not run.
STALL_LOOP = StallCause("loop", "event loop stalled", "A stalled event loop explains")
# It could have, but its thread got no CPU: others had them all, or the quota of its container was used up.
STALL_CPU = StallCause("cpu", "no CPU", "An event loop without a CPU explains")
# torch.compile was at work: the thread that needs it waits, and most of the time it holds the interpreter's lock.
STALL_COMPILE = StallCause("compile", "torch.compile", "torch.compile was at work in")

STALL_CAUSES = {cause.key: cause for cause in (STALL_GC, STALL_LOOP, STALL_CPU, STALL_COMPILE)}

# Where a request waits for its event loop. In any other stage it runs on the loop, and may be what keeps it, or beside it in
# a thread, which a stalled loop does not hold up.
_WAITS_FOR_LOOP = {"queue", "dependency", "network", OVERHEAD}


def holds_up(cause: str, stage: str) -> bool:
    """Say whether a stall by *cause* makes *stage* take longer.

    >>> holds_up("gc", "forward"), holds_up("loop", "forward"), holds_up("loop", "queue")
    (True, False, True)
    """
    return cause not in (STALL_LOOP.key, STALL_CPU.key) or stage in _WAITS_FOR_LOOP


def stall_key(cause: str, stage: str) -> str:
    """Return the name under which the time is counted that *cause* held *stage* up.

    >>> stall_key("gc", "forward")
    'gc:forward'
    """
    return f"{cause}:{stage}"


def split_stall_key(name: str) -> tuple[str, str]:
    """Return cause and stage of what `stall_key` made.

    >>> split_stall_key("gc:forward")
    ('gc', 'forward')
    """
    cause, _, stage = name.partition(":")
    return cause, stage
