"""Checks of what else is at work in the process: other tracers, and those who put their own classes in place of Python's."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .environment import Finding, Look
from .sources import imports

# Others that wrap the same calls: name, what starts it (a wrapper, a variable, a call in the sources), how to be without it.
TRACERS = (
    ("ddtrace", "ddtrace-run", ("ddtrace.auto", "ddtrace.patch_all"), "DD_TRACE_ENABLED=false"),
    ("New Relic", "newrelic-admin", ("newrelic.agent.initialize",), "NEW_RELIC_ENABLED=false"),
    ("Elastic APM", "elasticapm-run", ("elasticapm.instrument", "ElasticAPM"), "ELASTIC_APM_ENABLED=false"),
    ("Sentry", "", ("sentry_sdk.init",), "sentry_sdk.init(traces_sample_rate=0)"),
)
# What holds sockets, locks or threads of its own once it is imported.
BEFORE_GEVENT = frozenset({"aiohttp", "grpc", "httpx", "requests", "ssl", "torch", "urllib3"})


def tracers(look: Look) -> Iterator[Finding]:
    """Another tracer times the same calls: both work, and both cost."""
    called = {name for _, name, _ in look.sources.calls()}
    imported = {name for tree in look.sources.trees.values() for _, name in imports(tree)}
    for title, wrapper, starts, off in TRACERS:
        if wrapper in look.target.seen or called & set(starts) or imported & set(starts):
            yield Finding(
                f"{title} times the same calls. Nothing is counted twice, but a request pays for both, and its work is in our stages.",
                f"{off}    # to see what it takes",
                hurts=False,
            )


def gevent(look: Look) -> Iterator[Finding]:
    """Whether gevent or eventlet patches before what it has to patch is imported."""
    for path, tree in look.sources.trees.items():
        late = ""
        for node in tree.body:
            names = {name for statement, name in imports(ast.Module([node], [])) if statement is node}
            late = next((name for name in sorted(names) if name.partition(".")[0] in BEFORE_GEVENT), late)
            if late and _patches(node):
                yield Finding(
                    f"{path}:{node.lineno} patches after {late} was imported, whose sockets or locks stay as they were (a guess).",
                    "from gevent import monkey; monkey.patch_all()    # before all other imports",
                )
    worker = look.option("-k", "--worker-class") or ""
    if "eventlet" in worker or "eventlet" in look.sources.imported():
        yield Finding(
            "Stagelens was never tested with eventlet.", "gunicorn --worker-class gthread --threads 8 …", hurts=False
        )


def _patches(node: ast.stmt) -> bool:
    return any(
        isinstance(inner, ast.Call)
        and isinstance(inner.func, (ast.Attribute, ast.Name))
        and _name(inner.func) in ("patch_all", "monkey_patch")
        for inner in ast.walk(node)
    )


def _name(node: ast.Attribute | ast.Name) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id
