"""Checks of frameworks that work requests off elsewhere: where we do not follow a request, and what to write there.

They are those of docs/batches.md. One that has a module of ours is not spoken of.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from ..bootstrap import LIBRARIES
from .environment import Finding, Look
from .sources import dotted


class Way(NamedTuple):
    """A way in which a framework takes a request where we do not follow it.

    Args:
        module: The framework's import name, or that of its part.
        names: What in the sources takes it there, as people write it.
        programs: The programs that do, whatever the sources say.
        text: What follows from it.
        cure: What to write.
    """

    module: str
    names: tuple[str, ...]
    programs: tuple[str, ...]
    text: str
    cure: str


WAYS = (
    Way(
        "ray",
        ("serve.batch", "ray.serve.batch"),
        (),
        "works requests off together, in a task of its own: what is timed there belongs to none of them",
        "await self.batched(x, stagelens.ticket())    # and in batched: with stagelens.batch(tickets):",
    ),
    Way(
        "ray",
        ("serve.deployment", "ray.serve.deployment"),
        (),
        "runs in processes of Ray's: what is timed there belongs to no request",
        'with stagelens.request("model"):    # in its method',
    ),
    Way(
        "mlserver",
        ("MLModel", "mlserver.MLModel"),
        ("mlserver",),
        "runs in workers of MLServer's: what is timed there belongs to no request",
        'with stagelens.request("predict"):    # in its method',
    ),
    Way(
        "ts",
        (),
        ("torchserve",),
        "runs handlers in workers: what is timed there belongs to no request",
        'with stagelens.request("handle", traceparent=ctx.get_request_header(0, "traceparent") or ""):    # in the handler',
    ),
    Way(
        "litserve.specs",
        ("OpenAISpec", "ls.OpenAISpec", "litserve.OpenAISpec", "OpenAIEmbeddingSpec", "ls.OpenAIEmbeddingSpec"),
        (),
        "puts requests into LitServe's queue by itself: what is timed in the worker belongs to no request",
        'with stagelens.request("predict"):    # in predict',
    ),
)
# Who calls one of these has read docs/batches.md.
_CURES = frozenset({"stagelens.batch", "stagelens.request", "stagelens.ticket"})
_OWN_APPLICATION = "serve.ingress"


def elsewhere(look: Look) -> Iterator[Finding]:
    """Whether requests are worked off where what is timed belongs to none of them."""
    triggers = [library.trigger for library in LIBRARIES]
    known = {*triggers, *(trigger.partition(".")[0] for trigger in triggers)}
    places = _places(look)
    # A replica that serves an application of its own has requests of its own.
    if not _CURES.isdisjoint(places) or _OWN_APPLICATION in places or _in_process(look):
        return
    for way in WAYS:
        if way.module in known:
            continue
        imported = way.module.partition(".")[0] in look.sources.imported()
        place = next((f"{name} ({places[name]})" for name in way.names if imported and name in places), "")
        subject = place or (look.target.name if look.target.name in way.programs else "")
        if subject:
            yield Finding(f"{subject} {way.text} (a guess).", way.cure, hurts=False)


def _places(look: Look) -> dict[str, str]:
    """Return where each dotted name of the sources stands first."""
    found: dict[str, str] = {}
    for path, tree in look.sources.trees.items():
        for node in ast.walk(tree):
            if isinstance(node, (ast.Attribute, ast.Name)):
                found.setdefault(dotted(node), f"{path}:{node.lineno}")
    return found


def _in_process(look: Look) -> bool:
    return look.target.name == "mlserver" and look.environment.get("MLSERVER_PARALLEL_WORKERS") == "0"
