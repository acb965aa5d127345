"""What a process does before it is as fast as it will be: the phases of a cold start."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LoadPhase:
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
LOAD_START = LoadPhase(
    "start", "Until the first request", "from the start of the process until its first request began"
)
LOAD_READ = LoadPhase("read", "Read", "waiting for files, from a disk or a network")
LOAD_DESERIALISE = LoadPhase("deserialise", "Deserialise", "objects made of what was read")
LOAD_COPY = LoadPhase("copy", "Copy", "weights copied into a module, or to a device")
LOAD_COMPILE = LoadPhase("compile", "Compile", "torch.compile at work")
LOAD_FIRST_RUN = LoadPhase(
    "first_run", "First run", "the first run of a model, on a device or with a shape that is new to it"
)

LOAD_PHASES = {
    phase.key: phase for phase in (LOAD_START, LOAD_READ, LOAD_DESERIALISE, LOAD_COPY, LOAD_COMPILE, LOAD_FIRST_RUN)
}
