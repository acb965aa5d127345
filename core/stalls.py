"""What holds requests up from below their code: stalls lie on top of stages, and say why those took so long."""

from __future__ import annotations

from dataclasses import dataclass

from .stages import OVERHEAD


@dataclass(frozen=True, slots=True)
class Cause:
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
GC = Cause("gc", "GC pause", "GC explains")
# An event loop did not get round to its callbacks: one kept it from all others, or its thread could not run.
LOOP = Cause("loop", "event loop stalled", "A stalled event loop explains")
# It could have, but its thread got no CPU: others had them all, or the quota of its container was used up.
CPU = Cause("cpu", "no CPU", "An event loop without a CPU explains")
# torch.compile was at work: the thread that needs it waits, and most of the time it holds the interpreter's lock.
COMPILE = Cause("compile", "torch.compile", "torch.compile was at work in")

CAUSES = {cause.key: cause for cause in (GC, LOOP, CPU, COMPILE)}

# Where a request waits for its event loop. In any other stage it runs on the loop, and may be what keeps it, or beside it in
# a thread, which a stalled loop does not hold up.
_WAITS_FOR_LOOP = {"queue", "dependency", "network", OVERHEAD}


def holds_up(cause: str, stage: str) -> bool:
    """Say whether a stall by *cause* makes *stage* take longer.

    >>> holds_up("gc", "forward"), holds_up("loop", "forward"), holds_up("loop", "queue")
    (True, False, True)
    """
    return cause not in (LOOP.key, CPU.key) or stage in _WAITS_FOR_LOOP


def joined(cause: str, stage: str) -> str:
    """Return the name under which the time is counted that *cause* held *stage* up.

    >>> joined("gc", "forward")
    'gc:forward'
    """
    return f"{cause}:{stage}"


def parted(name: str) -> tuple[str, str]:
    """Return cause and stage of what `joined` made.

    >>> parted("gc:forward")
    ('gc', 'forward')
    """
    cause, _, stage = name.partition(":")
    return cause, stage
