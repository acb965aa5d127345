"""Stages of a request, in the order in which charts stack them, causes of stalls, which overlap stages, and phases of a cold start."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .text import PairKey

OVERHEAD = "overhead"
# Stage of the whole time of a request that was recorded without stages; a request with stages has no such time.
UNTIMED = "untimed"
# Interval of the whole request as its web framework sees it, and of the user's endpoint in it: other stages lie inside.
FRAMEWORK = "framework"
HANDLER = "handler"
# Stages whose time has no known cause: coverage objectives count them as not covered.
UNEXPLAINED = (OVERHEAD, HANDLER)
# Maximum number of custom stages in a readable chart; further stages are merged into OTHER.
MAX_CUSTOM_STAGES = 3
OTHER = "__other__"
# Stages in which a request waits for its event loop. In any other stage the request runs on the loop, and may block it, or in a
# thread, which a stalled loop does not delay.
_WAITS_FOR_LOOP = {"queue", "dependency", "network", FRAMEWORK, *UNEXPLAINED}


@dataclass(frozen=True, slots=True)
class Stage:
    """Stage of a request: a named, exclusive share of its wall time."""

    key: str  # Name on the wire and in the store
    label: str  # Name on pages
    meaning: str  # Description for a tooltip, one line
    waiting: bool = False  # Whether the request only waits in the stage, so that faster code would not help


STAGES: tuple[Stage, ...] = (
    Stage("forward", "Forward", "running a model that is not autoregressive"),
    Stage("prefill", "Prefill", "running the model until the first token"),
    Stage("decode", "Decode", "running the model after the first token"),
    Stage("h2d", "Transfer H→D", "copying data from the host to the device"),
    Stage("d2h", "Transfer D→H", "copying data from the device to the host"),
    Stage("preprocess", "Preprocess", "preparing the input: decoding, resizing, normalising or feature engineering"),
    Stage("tokenize", "Tokenize", "converting text to token ids"),
    Stage("postprocess", "Postprocess", "processing the output: NMS, labels, detokenising or sampling"),
    Stage("serialize", "Serialize", "parsing the request body, or building the response"),
    Stage("dependency", "Dependency", "waiting for another service that the request calls", waiting=True),
    Stage("network", "Network", "receiving the request body, or sending the response", waiting=True),
    Stage("queue", "Queue", "waiting in a proxy, thread pool, executor, batch or scheduler", waiting=True),
    Stage("load", "Cold start", "loading weights, creating sessions, compiling or warming up", waiting=True),
    Stage("framework", "Framework", "routing, middleware, dependencies and validation of the web framework"),
    Stage("handler", "Handler", "your endpoint's code that no other stage covers"),
    Stage("untimed", "Not timed", "time of requests that the agent recorded without stages to reduce its cost"),
    Stage("overhead", "Unattributed", "time of the request that no stage covers"),
)

ORDER: dict[str, int] = {stage.key: position for position, stage in enumerate(STAGES)}
BY_KEY: dict[str, Stage] = {stage.key: stage for stage in STAGES}


def label(key: str) -> str:
    """Return the name of stage *key* on pages; a custom stage keeps its own name.

    >>> label("h2d")
    'Transfer H→D'
    >>> label("rerank")
    'rerank'
    """
    stage = BY_KEY.get(key)
    if stage is not None:
        return stage.label
    return "Other" if key == OTHER else key


def position(key: str) -> tuple[int, str]:
    """Return the sort key of stage *key*: fixed stages in their order, and custom stages by name just below `overhead`.

    >>> sorted(["overhead", "rerank", "queue", "forward"], key=position)
    ['forward', 'queue', 'rerank', 'overhead']
    """
    if key in ORDER:
        return (ORDER[key] + (key == OVERHEAD), "")
    return (ORDER[OVERHEAD], key)


def ordered(stages: Iterable[str]) -> list[str]:
    return sorted(stages, key=position)


@dataclass(frozen=True, slots=True)
class StallCause:
    """Cause of a stall, during which requests make no progress."""

    key: str  # Name on the wire and in the store
    label: str  # Label of an affected span
    sentence: str  # Clause about the stall, with `{}` for its duration


# A garbage collection stops every thread of the interpreter.
STALL_GC = StallCause("gc", "GC pause", "Garbage collection took {}")
# An event loop did not run its callbacks: one callback blocked it.
STALL_LOOP = StallCause("loop", "event loop stalled", "The event loop was blocked for {}")
# The thread of an event loop got no CPU: other threads used them all, or its container exceeded its CPU quota.
STALL_CPU = StallCause("cpu", "waited for a CPU", "The event loop waited {} for a CPU")
# torch.compile was running: the calling thread waits, and most of the time it holds the GIL.
STALL_COMPILE = StallCause("compile", "torch.compile", "torch.compile ran for {}")

STALL_CAUSES = {cause.key: cause for cause in (STALL_GC, STALL_LOOP, STALL_CPU, STALL_COMPILE)}


def holds_up(cause: str, stage: str) -> bool:
    """Return whether a stall by *cause* makes *stage* take longer.

    >>> holds_up("gc", "forward"), holds_up("loop", "forward"), holds_up("loop", "queue")
    (True, False, True)
    """
    return cause not in (STALL_LOOP.key, STALL_CPU.key) or stage in _WAITS_FOR_LOOP


# Key for counting the time in which a cause stalled a stage.
stall_key = PairKey(":")
split_stall_key = stall_key.split


@dataclass(frozen=True, slots=True)
class LoadPhase:
    key: str
    label: str
    text: str


# From the start of the process until its first request.
LOAD_START = LoadPhase(
    "start", "Until the first request", "from the start of the process until its first request began"
)
LOAD_READ = LoadPhase("read", "Read", "waiting for files, from a disk or a network")
LOAD_DESERIALISE = LoadPhase("deserialise", "Deserialise", "objects created from the loaded data")
LOAD_COPY = LoadPhase("copy", "Copy", "weights copied into a module, or to a device")
LOAD_COMPILE = LoadPhase("compile", "Compile", "torch.compile running")
LOAD_FIRST_RUN = LoadPhase(
    "first_run", "First run", "the first run of a model, on a device or with a shape that is new to it"
)

LOAD_PHASES = {
    phase.key: phase for phase in (LOAD_START, LOAD_READ, LOAD_DESERIALISE, LOAD_COPY, LOAD_COMPILE, LOAD_FIRST_RUN)
}
