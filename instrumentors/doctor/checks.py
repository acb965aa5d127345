"""The table of all checks, in the order in which they are told."""

from __future__ import annotations

from collections.abc import Iterator

from . import batching, delivery, engines, frameworks, startup, surroundings
from .environment import Check, Finding, Look

CHECKS: tuple[Check, ...] = (
    startup.program,
    engines.foreign,
    startup.age,
    startup.autoload,
    startup.stages,
    startup.uwsgi,
    frameworks.gevent,
    frameworks.tracers,
    batching.elsewhere,
    surroundings.threads,
    surroundings.memory,
    surroundings.temporary,
    surroundings.gpus,
    delivery.settings,
    delivery.collector,
    engines.counters,
    engines.vllm,
    engines.sglang,
    engines.triton,
    engines.usage,
)


def findings(look: Look) -> Iterator[Finding]:
    """Yield what all checks find, what hurts first."""
    found = [finding for check in CHECKS for finding in check(look)]
    yield from sorted(found, key=lambda finding: not finding.hurts)
