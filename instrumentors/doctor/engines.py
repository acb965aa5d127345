"""Checks of servers that can tell more than they are asked to: vLLM, SGLang, Triton, and counters shared by workers."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from .environment import Finding, Look

MULTIPROC = "PROMETHEUS_MULTIPROC_DIR"
_VLLM_SERVERS = ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.cli.main")
# Where vLLM declares its options.
_VLLM_OPTIONS = ("engine/arg_utils.py", "entrypoints/openai/cli_args.py", "entrypoints/launchers/cli_args.py")
_COMPLETIONS = ("completions.create", "acompletion", "completion")


def vllm(look: Look) -> Iterator[Finding]:
    """Whether vLLM would tell of each request, and of itself."""
    if (
        not (look.target.name == "vllm" and look.target.words[:1] == ("serve",))
        and look.target.program not in _VLLM_SERVERS
    ):
        return
    if look.option("--otlp-traces-endpoint") is None:
        yield Finding(
            "vLLM sends no spans: queue, prefill and decode of each request stay unknown.",
            "vllm serve … --otlp-traces-endpoint=grpc://127.0.0.1:4317    # and OTEL_EXPORTER_OTLP_TRACES_INSECURE=true",
            hurts=False,
        )
    if look.option("--enable-per-request-metrics") is None and _knows(look, "enable_per_request_metrics"):
        yield Finding(
            "vLLM does not tell its clients how long each request waited and ran.",
            "vllm serve … --enable-per-request-metrics",
            hurts=False,
        )
    if look.option("--disable-log-stats") is not None:
        yield Finding(
            "--disable-log-stats leaves vLLM's /metrics without latencies.",
            "leave --disable-log-stats out",
            hurts=False,
        )


def sglang(look: Look) -> Iterator[Finding]:
    """Whether SGLang has metrics."""
    if look.target.program == "sglang.launch_server" and look.option("--enable-metrics") is None:
        yield Finding("SGLang has no /metrics.", "python -m sglang.launch_server … --enable-metrics", hurts=False)


def triton(look: Look) -> Iterator[Finding]:
    """Whether Triton sends its traces, and has metrics."""
    if look.target.name != "tritonserver":
        return
    if not any("mode=opentelemetry" in word for word in look.target.words):
        yield Finding(
            "Triton sends no traces: the stages of each request stay unknown.",
            "tritonserver … --trace-config mode=opentelemetry --trace-config level=TIMESTAMPS --trace-config rate=1 "
            "--trace-config opentelemetry,url=http://127.0.0.1:4318/v1/traces",
            hurts=False,
        )
    if (look.option("--allow-metrics") or "true").lower() in ("false", "0", "off"):
        yield Finding("--allow-metrics=false leaves nothing to read.", "leave --allow-metrics=false out", hurts=False)


def foreign(look: Look) -> Iterator[Finding]:
    """Whether the program is Python at all."""
    if (
        look.target.program
        and not look.target.interpreter
        and not look.target.lost
        and look.target.name not in ("tritonserver", "uwsgi")
    ):
        yield Finding(
            f"{look.target.name} is no Python program. Only Python processes that it starts are timed.",
            "https://opentelemetry.io/docs/languages/    # its spans, or its /metrics: docs/engines.md",
        )


def counters(look: Look) -> Iterator[Finding]:
    """Whether prometheus-client adds up what several workers count."""
    folder = look.environment.get(MULTIPROC) or look.environment.get(MULTIPROC.lower())
    if folder is not None and not Path(folder).is_dir():
        yield Finding(f"{MULTIPROC} is {folder}, which is no folder: counting fails there.", f"mkdir -p {folder}")
    workers = look.option("-w", "--workers") or look.environment.get("WEB_CONCURRENCY") or "1"
    if folder is None and workers.isdigit() and int(workers) > 1 and "prometheus_client" in look.sources.imported():
        yield Finding(
            f"{workers} workers count for themselves, and /metrics shows one of them at a time (a guess: prometheus_client is imported).",
            f"mkdir -p /tmp/counters && export {MULTIPROC}=/tmp/counters",
        )


def usage(look: Look) -> Iterator[Finding]:
    """Whether a stream is asked for without its usage, so that its tokens cannot be counted."""
    for place, name, call in look.sources.calls():
        given = {keyword.arg: keyword.value for keyword in call.keywords}
        streams = given.get("stream")
        if (
            name.endswith(_COMPLETIONS)
            and isinstance(streams, ast.Constant)
            and streams.value is True
            and not {"stream_options", None, "extra_body"} & given.keys()
        ):
            yield Finding(
                f"{place} asks for a stream without its usage: its tokens are not known (a guess).",
                'stream_options={"include_usage": True}',
                hurts=False,
            )


def _knows(look: Look, option: str) -> bool:
    """Say whether the installed vLLM has *option*; where it cannot be read, it may."""
    home = look.interpreter.places.get("vllm") if look.interpreter else None
    texts = [
        file.read_text(errors="replace") for name in _VLLM_OPTIONS if home and (file := Path(home, name)).is_file()
    ]
    return not texts or any(option in text for text in texts)
