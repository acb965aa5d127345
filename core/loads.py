"""What a process does before it is as fast as it will be: the phases of a cold start."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of a cold start.

    Args:
        key: The name on the wire and in the store.
        label: What pages call it.
        text: What it is.
    """

    key: str
    label: str
    text: str


# From the birth of the process until the first request came in.
START = Phase("start", "Until the first request", "from the start of the process until its first request began")
READ = Phase("read", "Read", "waiting for files, from a disk or a network")
DESERIALISE = Phase("deserialise", "Deserialise", "objects made of what was read")
COPY = Phase("copy", "Copy", "weights copied into a module, or to a device")
COMPILE = Phase("compile", "Compile", "torch.compile at work")
FIRST_RUN = Phase("first_run", "First run", "the first run of a model, on a device or with a shape that is new to it")

PHASES = {phase.key: phase for phase in (START, READ, DESERIALISE, COPY, COMPILE, FIRST_RUN)}
