"""Checks of the start and of the delivery of a command.

- Start: whether its interpreter loads Stagelens, and what the machine or container allows.
- Delivery: the settings of the agent, and the collector, which gets an empty export.
"""

from __future__ import annotations

import email.utils
import http.client
import logging
import os
import re
import shlex
import ssl
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from ...core.addresses import server_url
from ...core.proxies import ProxyError, proxy_of, through_proxy
from ...core.settings.values import format_size
from ...core.version import __version__
from .. import run
from ..agent.profile import LOCK_SHARE, SLOW_SHARE
from ..config import AgentConfig
from ..config_file import apply_config_file
from ..export.exporter import DENIED_STATUSES, OK_STATUSES, OWN_HEADERS, RETRY_STATUSES, explanation
from ..export.http_post import HttpResponse, origin, post
from .inspection import OLDEST_OPENTELEMETRY, OLDEST_PYTHON, DoctorFinding, Inspection, Interpreter

CGROUP = Path("/sys/fs/cgroup")
# Device file that the NVIDIA driver creates and its container runtime exposes.
DRIVER = Path("/dev/nvidiactl")
# Memory of the agent in a process, apart from its buffer: `python benchmarks/overhead.py footprint`.
OURS_BYTES = 4 * 1024**2


def check_threads(inspection: Inspection) -> Iterator[DoctorFinding]:
    if inspection.interpreter and inspection.interpreter.thread_error:
        yield DoctorFinding(
            f"No thread can be started ({inspection.interpreter.thread_error}): nothing would be sent.",
            "ulimit -u, pids.max of the container; with Docker before 20.10.10: --security-opt seccomp=unconfined",
        )


def check_temporary_files(inspection: Inspection) -> Iterator[DoctorFinding]:
    """Check that a temporary file can be created, which a run saved by `stagelens run` needs."""
    if not inspection.saved_here:
        return
    try:
        tempfile.TemporaryFile().close()
    except OSError as error:
        yield DoctorFinding(
            f"The run cannot be saved: {error.strerror or error}.", "TMPDIR=/a/folder/that/can/be/written"
        )


def check_memory(inspection: Inspection) -> Iterator[DoctorFinding]:
    free = memory_left(CGROUP)
    buffer = AgentConfig.from_env(
        {name: value for name, value in inspection.environment.items() if "BUFFER" in name}
    ).buffer_bytes
    if free is not None and free < OURS_BYTES + buffer:
        yield DoctorFinding(
            f"The container has {format_size(max(free, 0))} of memory left; each process may need {format_size(OURS_BYTES + buffer)} while "
            "no collector responds.",
            "STAGELENS_BUFFER_SIZE=1MiB, or a higher memory limit",
        )


def check_gpus(inspection: Inspection) -> Iterator[DoctorFinding]:
    if DRIVER.exists() and inspection.interpreter and not inspection.installed("nvidia-ml-py"):
        yield DoctorFinding(
            "There is a GPU, but nvidia-ml-py is missing: its utilization will not be reported.",
            "pip install 'stagelens[gpu]'",
            hurts=False,
        )


def memory_left(cgroup: Path) -> int | None:
    """Return the free memory of the container of *cgroup* in bytes; None without a limit."""
    try:
        limit, used = (cgroup / "memory.max").read_text().strip(), (cgroup / "memory.current").read_text()
        reclaimable = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    # The page cache is reclaimable.
    return None if limit == "max" else int(limit) - int(used) + int(reclaimable.get("file", 0))


BY_HAND = "import stagelens; stagelens.instrument()    # the first line of the program"


def check_program(inspection: Inspection) -> Iterator[DoctorFinding]:
    target = inspection.target
    if target.lost:
        text, _, fix = target.lost.partition("\n")
        outside = f"run `stagelens doctor` and `stagelens run` inside the command that {target.name} starts"
        known = "It cannot be started" if fix else "The program could not be determined"
        yield DoctorFinding(f"{known}: {text}", fix.strip() or (outside if "elsewhere" in text else ""))
    elif inspection.silence:
        yield DoctorFinding(f"{target.interpreter} cannot be queried: {inspection.silence}")
    if target.bundle:
        text, _, fix = target.bundle.partition(" fix: ")
        yield DoctorFinding(text, fix)


def check_versions(inspection: Inspection) -> Iterator[DoctorFinding]:
    found = inspection.interpreter
    if found is None:
        return
    oldest = ".".join(map(str, OLDEST_PYTHON))
    if tuple(found.version[:2]) < OLDEST_PYTHON:
        version = ".".join(map(str, found.version))
        yield DoctorFinding(
            f"{found.executable} is Python {version}; Stagelens needs {oldest}, so the program is not timed.",
            f"send its OpenTelemetry spans to the collector instead, or use Python {oldest}",
        )
    for name in ("opentelemetry-api", "opentelemetry-sdk"):
        if (version := inspection.installed(name)) and _version_numbers(version) < OLDEST_OPENTELEMETRY:
            wanted = f"{name}>={'.'.join(map(str, OLDEST_OPENTELEMETRY))}"
            yield DoctorFinding(
                f"{name} {version} is too old, so the program is not timed.",
                f"{found.executable} -m pip install {shlex.quote(wanted)}",
            )
    if found.implementation != "cpython" or not found.gil:
        kind = found.implementation if found.implementation != "cpython" else "free-threaded Python"
        yield DoctorFinding(f"Stagelens was never tested with {kind}.", hurts=False)


def check_autoload(inspection: Inspection) -> Iterator[DoctorFinding]:
    """Check that Stagelens is loaded before the program, from a test run of the interpreter."""
    found = inspection.interpreter
    if found is None or tuple(found.version[:2]) < OLDEST_PYTHON:
        return
    ours, error = found.stagelens, str(found.stagelens.get("error", ""))
    # Reasons: -E, -I, -S, a replaced environment, another sitecustomize.
    reason, fix = _reason_not_loaded(inspection, found)
    if not ours["loaded"] and reason:
        yield DoctorFinding(f"{reason}: nothing is timed.", fix)
    elif error:
        user = (
            "; packages in the user site directory are ignored (PYTHONNOUSERSITE or -s)" if found.no_user_site else ""
        )
        yield DoctorFinding(
            f"{found.executable} cannot load stagelens ({error}){user}: nothing is timed.",
            f"{found.executable} -m pip install {shlex.quote(run.SOURCE)}",
        )
    elif not ours["loaded"]:
        yield DoctorFinding(
            f"another sitecustomize ({found.sitecustomize or 'unknown'}) runs instead of that of Stagelens: nothing is timed.",
            BY_HAND,
        )
    elif ours["version"] != __version__:
        yield DoctorFinding(
            f"The program would load stagelens {ours['version']} from {ours['file']}, not this version {__version__}.",
            hurts=False,
        )


def check_stages(inspection: Inspection) -> Iterator[DoctorFinding]:
    """Check that the functions of `--stage` exist."""
    named = run.functions.parse(inspection.environment.get(run.functions.VARIABLE, ""))
    for stage, module, path in named:
        if inspection.sources.defines(module, path) is False:
            yield DoctorFinding(
                f"--stage {stage}={module}:{path} does not exist in {module}: the stage stays empty.",
                f"--stage {stage}={module}:FUNCTION, or :CLASS.METHOD, with a name that {module} defines",
            )


def check_uwsgi(inspection: Inspection) -> Iterator[DoctorFinding]:
    threads = ("--enable-threads", "--threads")
    if inspection.target.name == "uwsgi" and inspection.option(*threads) is None and not inspection.option("--ini"):
        yield DoctorFinding("uWSGI runs no threads by default, so nothing is sent.", "uwsgi --enable-threads …")


def _reason_not_loaded(inspection: Inspection, found: Interpreter) -> tuple[str, str]:
    if found.ignores_environment:
        flags = " ".join(flag for flag in inspection.target.flags if set("IE") & set(flag)) or "-I or -E"
        return f"{flags} makes Python ignore PYTHONPATH, which loads Stagelens", f"remove {flags}, or {BY_HAND}"
    if found.no_site:
        return "-S makes Python skip sitecustomize, which loads Stagelens", f"remove -S, or {BY_HAND}"
    if str(run.AUTOLOAD) not in found.environment.get("PYTHONPATH", "").split(os.pathsep):
        outer, inner = shlex.join(inspection.target.outer), shlex.join(inspection.target.inner)
        return "PYTHONPATH, which loads Stagelens, is overwritten", f"{outer} stagelens run -- {inner}".strip()
    return "", ""


def _version_numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


HTTP_PORT = 4318
# A user waits for the report, and a collector normally responds immediately.
MAX_TIMEOUT_SECONDS = 5.0
# With a larger skew requests appear in a different minute than the one in which they were served.
MAX_SKEW_SECONDS = 60.0


def check_settings(inspection: Inspection) -> Iterator[DoctorFinding]:
    config, lines = _read_config(inspection)
    yield from (DoctorFinding(line.removeprefix("stagelens: ")) for line in lines)
    if not config.enabled:
        yield DoctorFinding("OTEL_SDK_DISABLED is true: nothing is recorded.", "unset OTEL_SDK_DISABLED")
    env = apply_config_file(inspection.environment)
    named = "service.name=" in env.get("OTEL_RESOURCE_ATTRIBUTES", "")
    if inspection.interpreter and not env.get("OTEL_SERVICE_NAME") and not named:
        yield DoctorFinding(
            f"OTEL_SERVICE_NAME is not set; the service will have the name {inspection.target.name!r}.",
            "OTEL_SERVICE_NAME=checkout",
            hurts=False,
        )


def profiler_state(inspection: Inspection) -> str:
    """Return whether the tail profiler samples call stacks, with its limits; "" if nothing is recorded."""
    config, _ = _read_config(inspection)
    if not config.enabled:
        return ""
    if not config.profile:
        return "off (STAGELENS_PROFILE)"
    limit = f"at most {100 * SLOW_SHARE:g} % of a CPU core, {100 * (SLOW_SHARE + LOCK_SHARE):g} % while requests wait for locks"
    return f"on, {limit}, within the overhead budget of {config.budget}" if config.budget else f"on, {limit}"


def check_collector(inspection: Inspection) -> Iterator[DoctorFinding]:
    config, _ = _read_config(inspection)
    if inspection.alone:
        yield DoctorFinding(
            "No collector responds: in this terminal, the run is summarized when it ends. For a service, start a collector.",
            "stagelens up",
            hurts=False,
        )
    if inspection.saved_here or not config.enabled:
        return
    # One test per collector, even if it has two URLs.
    addresses = {origin(url): url for url in (config.traces_url, config.metrics_url)}
    yield from filter(None, (_try_export(config, url) for url in addresses.values()))


def _read_config(inspection: Inspection) -> tuple[AgentConfig, list[str]]:
    logger, handler = logging.getLogger("stagelens"), _LogLines()
    logger.addHandler(handler)
    propagates, logger.propagate = logger.propagate, False
    try:
        return AgentConfig.from_env(inspection.environment), handler.lines
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagates


class _LogLines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def _try_export(config: AgentConfig, url: str) -> DoctorFinding | None:
    place = origin(url)
    try:
        response = _post_empty_export(config, url)
    except ssl.SSLError as error:
        return DoctorFinding(
            f"{place}: TLS verification failed on one side ({_error_reason(error)}).", _tls_fix(place, error)
        )
    except http.client.HTTPException:
        text = f"{place} does not respond with HTTP/1; it may be the OTLP/gRPC port. No data arrives."
        return DoctorFinding(text, f"OTEL_EXPORTER_OTLP_ENDPOINT={server_url(urlsplit(url).hostname or '', HTTP_PORT)}")
    except (OSError, ValueError) as error:
        fix = f"stagelens up    # or OTEL_EXPORTER_OTLP_ENDPOINT=http://HOST:{HTTP_PORT}"
        fix = f"{error.fix}." if isinstance(error, ProxyError) else fix
        buffer_size = f"{format_size(config.buffer_bytes)} for each process"
        text = f"No collector at {place} ({_error_reason(error)}): data is buffered, up to {buffer_size}, and is lost on exit."
        return DoctorFinding(text, fix)
    if response.status in DENIED_STATUSES:
        fix = "OTEL_EXPORTER_OTLP_HEADERS=authorization=Bearer%20<token>"
        text = "requires a token" if not config.headers else "rejects the token or certificate"
        return DoctorFinding(f"{place} {text} (HTTP {response.status} {explanation(response.body)}).", fix)
    if response.status in OK_STATUSES:
        return _clock_skew(place, response.headers.get("Date") or "")
    text = "does not accept data at present" if response.status in RETRY_STATUSES else "is not an OTLP receiver"
    fix = "" if response.status in RETRY_STATUSES else f"OTEL_EXPORTER_OTLP_ENDPOINT={place}"
    return DoctorFinding(
        f"{place} {text}: POST {urlsplit(url).path}{through_proxy(url)} returned HTTP {response.status} {explanation(response.body)}.",
        fix,
    )


def _post_empty_export(config: AgentConfig, url: str) -> HttpResponse:
    headers = {**config.headers, **OWN_HEADERS}
    # An empty export is a message of zero bytes.
    headers.pop("Content-Encoding")
    timeout = min(config.timeout_seconds, MAX_TIMEOUT_SECONDS)
    return post(url, b"", headers, timeout, config.trust.context, proxy=proxy_of(url))


def _clock_skew(place: str, date: str) -> DoctorFinding | None:
    try:
        ahead = time.time() - email.utils.parsedate_to_datetime(date).timestamp()
    except ValueError:
        return None
    if abs(ahead) <= MAX_SKEW_SECONDS:
        return None
    side = "ahead of" if ahead > 0 else "behind"
    text = f"The clock here is {abs(ahead):,.0f} s {side} that of {place}: requests appear at the wrong time."
    return DoctorFinding(text, "timedatectl set-ntp true    # on the host with the wrong clock")


def _tls_fix(place: str, error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return "OTEL_EXPORTER_OTLP_CERTIFICATE=/path/of/the/authority.pem"
    if "WRONG_VERSION_NUMBER" in str(error):
        return f"OTEL_EXPORTER_OTLP_ENDPOINT={place.replace('https:', 'http:')}    # the collector does not use TLS"
    return "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE=cert.pem OTEL_EXPORTER_OTLP_CLIENT_KEY=key.pem"


def _error_reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
