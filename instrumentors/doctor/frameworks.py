"""Checks of frameworks and servers: other tracers, gevent, frameworks that process requests elsewhere, and engine metrics.

The frameworks that move a request to another task or process are those of docs/batches.md, except frameworks with an
instrumentor. Engines are vLLM, SGLang and Triton, which can export more than they do by default.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from .. import scripts
from ..bootstrap import LIBRARIES
from .inspection import DoctorFinding, Inspection, dotted_name, imported_names

MULTIPROC = "PROMETHEUS_MULTIPROC_DIR"
_VLLM_SERVERS = ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.cli.main")
# Files in which vLLM declares its options.
_VLLM_OPTIONS = ("engine/arg_utils.py", "entrypoints/openai/cli_args.py", "entrypoints/launchers/cli_args.py")
_COMPLETIONS = ("completions.create", "acompletion", "completion")


def check_vllm(inspection: Inspection) -> Iterator[DoctorFinding]:
    if (
        not (inspection.target.name == "vllm" and inspection.target.words[:1] == ("serve",))
        and inspection.target.program not in _VLLM_SERVERS
    ):
        return
    if inspection.option("--otlp-traces-endpoint") is None:
        yield DoctorFinding(
            "vLLM sends no spans: queue, prefill and decode of each request stay unknown.",
            "vllm serve … --otlp-traces-endpoint=grpc://127.0.0.1:4317    # and OTEL_EXPORTER_OTLP_TRACES_INSECURE=true",
            hurts=False,
        )
    if inspection.option("--enable-per-request-metrics") is None and _knows(inspection, "enable_per_request_metrics"):
        yield DoctorFinding(
            "vLLM does not report queue and run times to its clients.",
            "vllm serve … --enable-per-request-metrics",
            hurts=False,
        )
    if inspection.option("--disable-log-stats") is not None:
        yield DoctorFinding(
            "--disable-log-stats leaves vLLM's /metrics without latencies.", "remove --disable-log-stats", hurts=False
        )


def check_sglang(inspection: Inspection) -> Iterator[DoctorFinding]:
    if inspection.target.program == "sglang.launch_server" and inspection.option("--enable-metrics") is None:
        yield DoctorFinding("SGLang has no /metrics.", "python -m sglang.launch_server … --enable-metrics", hurts=False)


def check_triton(inspection: Inspection) -> Iterator[DoctorFinding]:
    if inspection.target.name != "tritonserver":
        return
    if not any("mode=opentelemetry" in word for word in inspection.target.words):
        yield DoctorFinding(
            "Triton sends no traces: the stages of each request stay unknown.",
            "tritonserver … --trace-config mode=opentelemetry --trace-config level=TIMESTAMPS --trace-config rate=1 "
            "--trace-config opentelemetry,url=http://127.0.0.1:4318/v1/traces",
            hurts=False,
        )
    if (inspection.option("--allow-metrics") or "true").lower() in ("false", "0", "off"):
        yield DoctorFinding("--allow-metrics=false disables metrics.", "remove --allow-metrics=false", hurts=False)


def check_not_python(inspection: Inspection) -> Iterator[DoctorFinding]:
    if (
        inspection.target.program
        and not inspection.target.interpreter
        and not inspection.target.lost
        and inspection.target.bundle is None
        and inspection.target.name not in ("tritonserver", "uwsgi")
    ):
        yield DoctorFinding(
            f"{inspection.target.name} is not a Python program. Stagelens times only Python processes that it starts.",
            "https://opentelemetry.io/docs/languages/    # send its spans, or scrape its /metrics: docs/engines.md",
        )


def check_multiprocess_metrics(inspection: Inspection) -> Iterator[DoctorFinding]:
    """Check that prometheus-client sums the counters of several workers."""
    folder = inspection.environment.get(MULTIPROC) or inspection.environment.get(MULTIPROC.lower())
    if folder is not None and not Path(folder).is_dir():
        yield DoctorFinding(f"{MULTIPROC} is {folder}, which is not a folder: counting fails.", f"mkdir -p {folder}")
    workers = inspection.option("-w", "--workers") or inspection.environment.get("WEB_CONCURRENCY") or "1"
    if (
        folder is None
        and workers.isdigit()
        and int(workers) > 1
        and "prometheus_client" in inspection.sources.imported()
    ):
        yield DoctorFinding(
            f"Each of {workers} workers has separate counters; /metrics shows one worker at a time (a guess: prometheus_client is imported).",
            f"mkdir -p /tmp/counters && export {MULTIPROC}=/tmp/counters",
        )


def check_stream_usage(inspection: Inspection) -> Iterator[DoctorFinding]:
    for place, name, call in inspection.sources.calls():
        given = {keyword.arg: keyword.value for keyword in call.keywords}
        streams = given.get("stream")
        if (
            name.endswith(_COMPLETIONS)
            and isinstance(streams, ast.Constant)
            and streams.value is True
            and not {"stream_options", None, "extra_body"} & given.keys()
        ):
            yield DoctorFinding(
                f"{place} requests a stream without usage: its tokens are not counted (a guess).",
                'stream_options={"include_usage": True}',
                hurts=False,
            )


def _knows(inspection: Inspection, option: str) -> bool:
    home = inspection.interpreter.places.get("vllm") if inspection.interpreter else None
    texts = [
        file.read_text(errors="replace") for name in _VLLM_OPTIONS if home and (file := Path(home, name)).is_file()
    ]
    return not texts or any(option in text for text in texts)


class Way(NamedTuple):
    """A case in which a framework moves a request to a task or process that is not instrumented."""

    module: str
    names: tuple[str, ...]
    programs: tuple[str, ...]
    text: str
    fix: str


WAYS = (
    Way(
        "ts",
        (),
        ("torchserve",),
        "runs handlers in workers: each call of a model there counts as a request, and other stages belong to no request",
        'with stagelens.request("handle", traceparent=ctx.get_request_header(0, "traceparent") or ""):    # in the handler',
    ),
    Way(
        "litserve.specs",
        ("OpenAISpec", "ls.OpenAISpec", "litserve.OpenAISpec", "OpenAIEmbeddingSpec", "ls.OpenAIEmbeddingSpec"),
        (),
        "bypasses the instrumented queue of LitServe: stages recorded in the worker belong to no request",
        'with stagelens.request("predict"):    # in predict',
    ),
    Way(
        "multiprocessing",
        tuple(
            f"{module}.{name}" for module in ("multiprocessing", "mp") for name in ("Queue", "JoinableQueue", "Pipe")
        ),
        (),
        "carries jobs to another process: stages recorded there belong to no request",
        "jobs.put((x, stagelens.ticket()))    # and in the process: with stagelens.batch([ticket]) as run:",
    ),
)
# A program that calls one of these functions already handles batches (docs/batches.md).
_HANDLED_BY = frozenset({"stagelens.batch", "stagelens.request", "stagelens.ticket"})
_OWN_APPLICATION = "serve.ingress"
_QUEUES = frozenset({"Queue", "LifoQueue", "PriorityQueue"})


def check_batching(inspection: Inspection) -> Iterator[DoctorFinding]:
    """Check for frameworks that process requests in a task or process where their stages belong to no request."""
    triggers = [library.trigger for library in LIBRARIES]
    known = {*triggers, *(trigger.partition(".")[0] for trigger in triggers)}
    places = _first_positions(inspection)
    # A replica that serves its own ASGI application records its own requests.
    if not _HANDLED_BY.isdisjoint(places) or _OWN_APPLICATION in places:
        return
    for way in WAYS:
        if way.module in known:
            continue
        imported = way.module.partition(".")[0] in inspection.sources.imported()
        place = next((f"{name} ({places[name]})" for name in way.names if imported and name in places), "")
        subject = place or (inspection.target.name if inspection.target.name in way.programs else "")
        if subject:
            yield DoctorFinding(f"{subject} {way.text} (a guess).", way.fix, hurts=False)


def check_lists_of_jobs(inspection: Inspection) -> Iterator[DoctorFinding]:
    """Check for a future that the program creates for jobs in a list, because jobs are followed only through queues that can be instrumented."""
    places = _first_positions(inspection)
    types = {name.rpartition(".")[2] for name in places}
    place = next((position for name, position in places.items() if name.endswith(".create_future")), "")
    if place and types.isdisjoint(_QUEUES) and _HANDLED_BY.isdisjoint(places):
        yield DoctorFinding(
            f"{place} creates a future, but there is no queue that Stagelens follows: if a batcher takes jobs from a list or a "
            "SimpleQueue, its stages belong to no request (a guess).",
            "jobs.append((x, future, stagelens.ticket()))    # and in the batcher: with stagelens.batch(tickets):",
            hurts=False,
        )


# Servers that no instrumentor knows: functions and classes that start one, and modules.
_UNSEEN_CALLS = (
    "start_server",
    "start_unix_server",
    "create_server",
    "TCPServer",
    "ThreadingTCPServer",
    "websockets.serve",
)
_UNSEEN_MODULES = ("bjoern", "meinheld", "robyn", "rpyc", "socketify", "zerorpc")


def check_unseen_servers(inspection: Inspection) -> Iterator[DoctorFinding]:
    places = _first_positions(inspection)
    if not _HANDLED_BY.isdisjoint(places) or not inspection.sources.imported().isdisjoint(_SERVERS):
        return
    unseen = next((name for name in _UNSEEN_MODULES if name in inspection.sources.imported()), "")
    unseen = unseen or next(
        (f"{name} ({position})" for name, position in places.items() if name.endswith(_UNSEEN_CALLS)), ""
    )
    if unseen:
        yield DoctorFinding(
            f"{unseen} serves requests that Stagelens does not see: none would be counted (a guess).",
            'with stagelens.request("predict"):    # around the work for each request',
        )


_SERVERS = frozenset(name.partition(".")[0] for name in scripts.SERVERS)


def _first_positions(inspection: Inspection) -> dict[str, str]:
    found: dict[str, str] = {}
    for path, tree in inspection.sources.trees.items():
        for node in ast.walk(tree):
            if isinstance(node, (ast.Attribute, ast.Name)):
                found.setdefault(dotted_name(node), f"{path}:{node.lineno}")
    return found


# Other tracers of the same calls: name, wrapper command, calls in the sources that start it, setting that disables it.
TRACERS = (
    ("ddtrace", "ddtrace-run", ("ddtrace.auto", "ddtrace.patch_all"), "DD_TRACE_ENABLED=false"),
    ("New Relic", "newrelic-admin", ("newrelic.agent.initialize",), "NEW_RELIC_ENABLED=false"),
    ("Elastic APM", "elasticapm-run", ("elasticapm.instrument", "ElasticAPM"), "ELASTIC_APM_ENABLED=false"),
    ("Sentry", "", ("sentry_sdk.init",), "sentry_sdk.init(traces_sample_rate=0)"),
)
# Modules that create sockets, locks or threads on import.
BEFORE_GEVENT = frozenset({"aiohttp", "grpc", "httpx", "requests", "ssl", "torch", "urllib3"})


def check_tracers(inspection: Inspection) -> Iterator[DoctorFinding]:
    """Check for another tracer of the same calls, because both work and add up their overhead."""
    called = {name for _, name, _ in inspection.sources.calls()}
    imported = {name for tree in inspection.sources.trees.values() for _, name in imported_names(tree)}
    for title, wrapper, starts, off in TRACERS:
        if wrapper in inspection.target.seen or called & set(starts) or imported & set(starts):
            yield DoctorFinding(
                f"{title} traces the same calls. No request is counted twice, but both add overhead, and its overhead is in our stages.",
                f"{off}    # to measure its overhead",
                hurts=False,
            )


def check_gevent(inspection: Inspection) -> Iterator[DoctorFinding]:
    """Check that gevent or eventlet patches before the patched modules are imported."""
    for path, tree in inspection.sources.trees.items():
        late = ""
        for node in tree.body:
            names = {name for statement, name in imported_names(ast.Module([node], [])) if statement is node}
            late = next((name for name in sorted(names) if name.partition(".")[0] in BEFORE_GEVENT), late)
            if late and _patches(node):
                yield DoctorFinding(
                    f"{path}:{node.lineno} patches after {late} was imported, so its sockets or locks are not patched (a guess).",
                    "from gevent import monkey; monkey.patch_all()    # before all other imports",
                )
    worker = inspection.option("-k", "--worker-class") or ""
    if "eventlet" in worker or "eventlet" in inspection.sources.imported():
        yield DoctorFinding(
            "Stagelens was never tested with eventlet.", "gunicorn --worker-class gthread --threads 8 …", hurts=False
        )


def _patches(node: ast.stmt) -> bool:
    return any(
        isinstance(inner, ast.Call)
        and {getattr(inner.func, name, "") for name in ("attr", "id")} & {"patch_all", "monkey_patch"}
        for inner in ast.walk(node)
    )
