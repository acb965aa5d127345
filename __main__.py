"""Command line of Stagelens. Each command imports only the modules it needs, so that `stagelens run` loads no server."""

from __future__ import annotations

import argparse
import codecs
import io
import os
import sys
import time
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

from .cli import arguments
from .core.errors import StagelensError
from .core.version import __version__

if TYPE_CHECKING:
    from .collector.serve import Collector
    from .instrumentors.run import RunSaver
    from .store import Store

# Poll interval of the main thread, which handles signals that were delivered to other threads. [seconds]
_LOOK_SECONDS = 0.5
# Interval at which free memory is returned to the system. [seconds]
_TRIM_SECONDS = 60.0
# Modules of the server extra that are required to collect and report a run.
_OF_THE_SERVER = ("alembic", "dash", "numpy", "pandas", "pydantic", "rich", "sqlalchemy", "starlette", "uvicorn")
# Extras of the commands that need another one than the server extra.
_EXTRAS = {"mcp": "mcp"}


class Part(Protocol):
    """Component of the server that runs in its own threads."""

    def start(self) -> None:
        """Start the component, and return once it serves."""
        ...

    def stop(self) -> None:
        """Finish the accepted work, then return."""
        ...


def main(given: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        given: Arguments after `stagelens`; None for those of this process.

    Returns:
        0 for success, 1 for a reported error, 2 for an invalid command line.
    """
    if given is None:
        _prepare_streams()
    words = list(sys.argv[1:] if given is None else given)
    own = _own_reader(words)
    if own is not None:
        return _explained(lambda: own(words[1:]), extra=_EXTRAS.get(words[0], "server"))
    options = arguments.parser(__version__).parse_args(words)
    if options.command == "event":
        return _explained(lambda: _event(options))
    if options.command in arguments.TOOLS:
        return _explained(lambda: _main_of("collector.commands")(options.command, _environment(options), vars(options)))
    if getattr(options, "add_user", None):
        users = ".dashboard.web.users"
        return _explained(
            lambda: import_module(users, __package__).add_user_command(options.add_user, _environment(options))
        )
    if getattr(options, "check", False):
        return _explained(lambda: _main_of("collector.check")(_environment(options)))
    return _explained(lambda: _serve(options.command, _environment(options)))


def _prepare_streams() -> None:
    """Let the streams of this process accept every character, and be there if its parent has closed them."""
    codecs.register_error("stagelens", _similar)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115 - until the exit
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="stagelens")


def _similar(error: UnicodeError) -> tuple[str, int]:
    """Replace what an encoding does not have by similar ASCII characters, or question marks."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    given = unicodedata.normalize("NFKD", error.object[error.start : error.end])
    return given.encode("ascii", "replace").decode(), error.end


def _own_reader(words: list[str]) -> Callable[[list[str]], int] | None:
    """Return the command that parses *words* itself; None if argparse does.

    The words after `run` are another command line, which argparse must not parse.
    """
    modules: dict[str, tuple[Any, ...]] = {
        "run": ("instrumentors.run", _find_saver),
        "doctor": ("instrumentors.doctor", _find_saver),
        "bench": ("instrumentors.bench",),
        "check": ("alerts.check",),
        "import": ("collector.imports.command", os.environ),
        "compare": ("cli.compare", os.environ),
        "mcp": ("cli.mcp_server",),
        "export": ("alerts.export", os.environ),
    }
    # `alerts` alone is a server; followed by a word that is no option it is one of the alert commands.
    if words[1:2] and not words[1].startswith("-"):
        modules["alerts"] = ("alerts.commands", os.environ)
    if not words or words[0] not in modules:
        return None
    module, *others = modules[words[0]]
    return lambda rest: _main_of(module)(rest, *others)


def _main_of(module: str) -> Callable[..., int]:
    """Return the function `main` of *module*, which is loaded only now: see the module docstring."""
    return import_module(f".{module}", __package__).main


def _environment(options: argparse.Namespace) -> dict[str, str]:
    from .core.addresses import server_url  # noqa: PLC0415

    given = {key: value for key, value in vars(options).items() if key.startswith("STAGELENS_") and value is not None}
    environment = os.environ | given
    host = environment.get("STAGELENS_DASHBOARD_HOST") or "127.0.0.1"
    port = environment.get("STAGELENS_DASHBOARD_PORT") or "8600"
    # Links in alerts lead to the dashboard of this process unless configured otherwise.
    environment.setdefault("STAGELENS_DASHBOARD_URL", server_url(host, port))
    return environment


def _explained(command: Callable[[], int], extra: str = "server") -> int:
    """Run *command*, which needs the *extra* of the package, and return its exit code.

    Errors meant for the user are printed without a traceback.
    """
    try:
        code = command()
        sys.stdout.flush()
    except StagelensError as error:
        print(f"stagelens: {error}", file=sys.stderr)
    except BrokenPipeError:
        # The reader has closed the pipe, as `head` does; buffered output must not be written again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in ("", "stagelens"):
            raise
        from .cli.rerun import rerun_with  # noqa: PLC0415

        rerun_with(extra, sys.argv[1:])
        fix = f'pip install "stagelens[{extra}]"'
        print(
            f"stagelens: this command needs the {extra} extra ({error.name} is not installed).\n    {fix}",
            file=sys.stderr,
        )
    else:
        return code
    return 1


def _find_saver() -> RunSaver:
    """Return the function that collects and reports a run.

    Raises:
        ModuleNotFoundError: The server extra is not installed.
    """
    # The modules are searched but not loaded: the command must start in a process that has loaded none of them.
    for module in _OF_THE_SERVER:
        if find_spec(module) is None:
            raise ModuleNotFoundError(name=module)
    from .cli import run  # noqa: PLC0415

    return run.main


def _event(options: argparse.Namespace) -> int:
    from .instrumentors import event  # noqa: PLC0415

    given = {name: value for name, value in vars(options).items() if name != "command"}
    return event.main(given, os.environ)


def _serve(command: str, environment: Mapping[str, str]) -> int:
    """Run the server components of *command* until SIGTERM or Ctrl-C, then stop them in reverse order."""
    from .collector.allocator import reduce_gc_frequency, return_freed_memory, trim_heap  # noqa: PLC0415
    from .collector.config import CollectorConfig  # noqa: PLC0415
    from .core import logs  # noqa: PLC0415 - imports json and urllib, which `run` does not need
    from .core.background_tasks import stop_on_signals  # noqa: PLC0415
    from .store.store_factory import open_store, single_instance_lock, store_locations  # noqa: PLC0415

    return_freed_memory()
    output = logs.configure_logging(environment)
    stopped = stop_on_signals()
    with output.report_errors(), ExitStack() as stack:
        settings = CollectorConfig.from_env(environment)
        if command == "up":
            stack.enter_context(single_instance_lock(settings))
        store = open_store(settings, reads=command == "dashboard")
        stack.callback(store.close)
        lines = store_locations(settings)
        # All components are created, and all settings read, before the first one starts.
        for part, line in _parts(command, environment, store):
            part.start()
            stack.callback(part.stop)
            lines.append(line())
        reduce_gc_frequency()
        output.print_lines(f"stagelens {__version__}", *lines)
        # With a timeout: another thread may receive the signal, and only this thread can handle it.
        trim_at = 0.0
        while not stopped.wait(_LOOK_SECONDS):
            if time.monotonic() >= trim_at:
                trim_heap()
                trim_at = time.monotonic() + _TRIM_SECONDS
        output.print_lines("stagelens: stopping; accepted data is stored first")
    return 0


def _parts(command: str, environment: Mapping[str, str], store: Store) -> list[tuple[Part, Callable[[], str]]]:
    """Return the components of *command*, each with a function that returns its start message."""
    if command == "collector":
        return [_collector_part(_collector(environment, store))]
    from .alerts.serve import Alerts, AlertsConfig  # noqa: PLC0415

    alerts = Alerts(AlertsConfig.from_env(environment), store)
    parts: list[tuple[Part, Callable[[], str]]] = []
    if command == "up":
        collector = _collector(environment, store)
        collector.metrics.include(alerts.metrics)
        parts.append(_collector_part(collector))
    if command in ("up", "alerts"):
        parts.append((alerts, lambda: f"alerts     {alerts.place}"))
    if command in ("up", "dashboard"):
        from .core.addresses import listening_url  # noqa: PLC0415
        from .dashboard.config import DashboardConfig  # noqa: PLC0415
        from .dashboard.web.app import Dashboard  # noqa: PLC0415

        dashboard = Dashboard(DashboardConfig.from_env(environment), store, alerts.reader)
        parts.append((dashboard, lambda: f"dashboard  {listening_url(*dashboard.address)}"))
    return parts


def _collector(environment: Mapping[str, str], store: Store) -> Collector:
    from .collector.config import LiveConfig  # noqa: PLC0415
    from .collector.serve import Collector, CollectorConfig  # noqa: PLC0415

    config = CollectorConfig.from_env(environment)
    return Collector(config, store, file=LiveConfig(config.config_file, environment))


def _collector_part(collector: Collector) -> tuple[Part, Callable[[], str]]:
    return collector, lambda: "\n  ".join(collector.places)


if __name__ == "__main__":
    sys.exit(main())
