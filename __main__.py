"""The command line. Each command loads its own part only, so that `stagelens run` costs nothing of the server."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

from . import __version__
from .core.errors import StagelensError

if TYPE_CHECKING:
    from .collector.serve import Collector
    from .collector.store import Store

DESCRIPTION = "Stagelens shows where the time of inference requests goes, and why p99 is not p50."

EPILOG = """\
first steps:
  stagelens up                        collector, dashboard and alerts over one SQLite file
  stagelens run -- python serve.py    your own service, timed stage by stage, without a change to it

`stagelens COMMAND --help` names the options of a command; each can be an environment variable as well.
"""

# How long a signal that another thread was given may wait for the main one. [seconds]
_LOOK_SECONDS = 0.5

# What a command takes: option, environment variable, help with unit and default.
STORE = (
    (
        "--database",
        "STAGELENS_DATABASE",
        "where everything is kept: sqlite:///FILE or postgresql://user:password@host/database (default sqlite:///stagelens.db)",
    ),
    (
        "--points",
        "STAGELENS_POINTS",
        "a ClickHouse to keep the histograms instead: clickhousedb://user:password@host/database (default none)",
    ),
)
COLLECTOR = (
    ("--collector-host", "STAGELENS_COLLECTOR_HOST", "address for OTLP (default 127.0.0.1)"),
    ("--collector-port", "STAGELENS_COLLECTOR_PORT", "port for OTLP/HTTP, 0 for any (default 4318)"),
    (
        "--collector-grpc-port",
        "STAGELENS_COLLECTOR_GRPC_PORT",
        "port for OTLP/gRPC, 0 for any, off for none (default 4317)",
    ),
    (
        "--collector-config",
        "STAGELENS_COLLECTOR_CONFIG",
        "a YAML file: who may send, how spans are read, what is scraped (default none)",
    ),
)
DASHBOARD = (
    ("--dashboard-host", "STAGELENS_DASHBOARD_HOST", "address of the dashboard (default 127.0.0.1)"),
    ("--dashboard-port", "STAGELENS_DASHBOARD_PORT", "port of the dashboard, 0 for any (default 8600)"),
    ("--prices", "STAGELENS_PRICES", "a YAML file that says what services cost an hour (default none)"),
    ("--tracer", "STAGELENS_TRACER_URL", "address of a trace elsewhere, with {trace_id} in it (default none)"),
)
ALERTS = (("--slo", "STAGELENS_SLO_FILE", "objectives and channels (default slo.yaml, if this folder has one)"),)
ALERT_METRICS = (
    ("--metrics-host", "STAGELENS_ALERTS_METRICS_HOST", "address of the alerts' own metrics (default 127.0.0.1)"),
    ("--metrics-port", "STAGELENS_ALERTS_METRICS_PORT", "port for Prometheus to read them, 0 for any (default none)"),
)

SERVERS: dict[str, tuple[str, tuple[tuple[str, str, str], ...]]] = {
    "up": ("collector, alerts and dashboard in one process", (*STORE, *COLLECTOR, *DASHBOARD, *ALERTS)),
    "collector": ("receive OTLP and keep it in the store", (*STORE, *COLLECTOR)),
    "alerts": (
        "evaluate the objectives and deliver alerts; `alerts list`, `show`, `ack`, `silence`… look after incidents",
        (*STORE, *ALERTS, *ALERT_METRICS),
    ),
    "dashboard": ("serve the pages", (*STORE, *DASHBOARD, *ALERTS)),
}

CHECK = "only say what is wrong with the settings and the file, or what would be done, and end"
ADD_USER = "write NAME with a password, asked for here, into the file STAGELENS_DASHBOARD_USERS names, and end"

# What a command over the store takes besides: name, whether it must be given, help.
TOOLS: dict[str, tuple[str, tuple[tuple[str, bool, str], ...]]] = {
    "storage": ("what takes the store's room, by tier and by table, and how large it will get", ()),
    "backup": (
        "copy the store into one file, while it is used",
        (("file", True, "a new file; `stagelens dashboard --database sqlite:///FILE` shows what is in it"),),
    ),
    "restore": ("copy a backup into a database that holds nothing yet", (("file", True, "the backup"),)),
    "migrate": (
        "copy the store into another database that holds nothing yet, of any kind; goes on where it was interrupted",
        (
            ("--to", True, "the new database: sqlite:///path or postgresql://user:password@host/database"),
            ("--to-points", False, "a ClickHouse for the histograms: clickhousedb://… (default none)"),
        ),
    ),
}

EVENT = (
    ("--service", "NAME", "whose event it is (default all services)"),
    ("--kind", "KIND", "deploy, config, advice or note (default note)"),
    ("--key", "KEY", "what it is about, such as the version that was deployed (default none)"),
    ("--at", "TIME", "when, as ISO 8601 or milliseconds of the epoch (default now)"),
    ("--link", "URL", "where more is said (default none)"),
)


class Part(Protocol):
    """A part of the server that runs in threads of its own."""

    def start(self) -> None:
        """Return once it serves."""
        ...

    def stop(self) -> None:
        """Finish what was accepted, then return."""
        ...


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: The words after `stagelens`; those of this process when left out.

    Returns:
        The exit code: 0 done, 1 an error that was explained, 2 a wrong command line.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    own = _own_reader(words)
    if own is not None:
        return _explained(lambda: own(words[1:]))
    options = _parser().parse_args(words)
    if options.command == "event":
        return _explained(lambda: _event(options))
    if options.command in TOOLS:
        return _explained(lambda: _look_after(options))
    if getattr(options, "add_user", None):
        return _explained(lambda: _add_user(options.add_user, _environment(options)))
    if getattr(options, "check", False):
        return _explained(lambda: _check_collector(_environment(options)))
    return _explained(lambda: _serve(options.command, _environment(options)))


def _own_reader(words: list[str]) -> Callable[[list[str]], int] | None:
    """Return the command that reads what follows it by itself, if *words* begin with one."""
    # Alone, `alerts` is a server; a word after it that is no option is one of its commands.
    if words[:1] == ["alerts"] and words[1:2] and not words[1].startswith("-"):
        return _alerts
    # What follows `run` is somebody else's command line: argparse must not look at it.
    return {"run": _run, "check": _check}.get(words[0]) if words else None


def _layout(prog: str) -> argparse.HelpFormatter:
    return argparse.RawDescriptionHelpFormatter(prog, max_help_position=22)


def _add_command(
    commands: Any, name: str, meaning: str, options: Sequence[tuple[str, str, str]]
) -> argparse.ArgumentParser:
    sentence = f"{meaning[0].upper()}{meaning[1:]}."
    command = commands.add_parser(name, help=meaning, description=sentence, formatter_class=_layout)
    for option, variable, text in options:
        command.add_argument(option, dest=variable, metavar="X", help=f"{text} [{variable}]")
    return command


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("stagelens", description=DESCRIPTION, epilog=EPILOG, formatter_class=_layout)
    parser.add_argument("--version", action="version", version=f"stagelens {__version__}")
    commands = parser.add_subparsers(title="commands", dest="command", required=True, metavar="COMMAND")
    commands.add_parser("run", help="start your own program with every request timed")
    commands.add_parser("check", help="validate an SLO file: file, line, key, value, cure")
    _add_event(commands)
    for name, (meaning, options) in SERVERS.items():
        command = _add_command(commands, name, meaning, options)
        if name == "dashboard":
            command.add_argument("--add-user", metavar="NAME", help=ADD_USER)
        if name == "collector":
            command.add_argument("--check", action="store_true", help=CHECK)
    for name, (meaning, arguments) in TOOLS.items():
        command = _add_command(commands, name, meaning, STORE)
        for argument, required, text in arguments:
            given: dict[str, Any] = {"required": required} if argument.startswith("--") else {}
            command.add_argument(argument, metavar="X" if given else "FILE", help=text, **given)
    return parser


def _add_event(commands: Any) -> None:
    meaning = "tell the collector that something happened, such as a deploy; charts mark it"
    sentence = f"{meaning[0].upper()}{meaning[1:]}. It goes to OTEL_EXPORTER_OTLP_ENDPOINT, as what agents send."
    command = commands.add_parser("event", help=meaning, description=sentence, formatter_class=_layout)
    command.add_argument("text", metavar="TEXT", help="what happened, in a few words")
    for option, value, text in EVENT:
        command.add_argument(option, metavar=value, help=text)


def _environment(options: argparse.Namespace) -> dict[str, str]:
    """Return the environment with the options given on the command line over it."""
    given = {key: value for key, value in vars(options).items() if key.startswith("STAGELENS_") and value is not None}
    environment = os.environ | given
    host = environment.get("STAGELENS_DASHBOARD_HOST") or "127.0.0.1"
    port = environment.get("STAGELENS_DASHBOARD_PORT") or "8600"
    # Links in alerts lead to the dashboard beside them unless somebody says otherwise.
    environment.setdefault("STAGELENS_DASHBOARD_URL", f"http://{host}:{port}")
    return environment


def _explained(command: Callable[[], int]) -> int:
    """Run *command*; an error meant for the user is printed without a traceback."""
    try:
        code = command()
        sys.stdout.flush()
    except StagelensError as error:
        print(f"stagelens: {error}", file=sys.stderr)
    except BrokenPipeError:
        # Whoever read it has seen enough, as `head` does; what is left must not be written again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in ("", "stagelens"):
            raise
        cure = 'pip install "stagelens[server]"'
        print(
            f"stagelens: this command needs the server extra ({error.name} is not installed).\n    {cure}",
            file=sys.stderr,
        )
    else:
        return code
    return 1


def _run(words: list[str]) -> int:
    from .instrumentors import run  # noqa: PLC0415 - the module's docstring says why

    return run.main(words)


def _check(words: list[str]) -> int:
    from .alerts import check  # noqa: PLC0415

    return check.main(words)


def _check_collector(environment: Mapping[str, str]) -> int:
    from .collector import check  # noqa: PLC0415

    return check.main(environment)


def _alerts(words: list[str]) -> int:
    from .alerts import commands  # noqa: PLC0415

    return commands.main(words, os.environ)


def _event(options: argparse.Namespace) -> int:
    from .instrumentors import event  # noqa: PLC0415

    given = {name: value for name, value in vars(options).items() if name != "command"}
    return event.main(given, os.environ)


def _look_after(options: argparse.Namespace) -> int:
    from .collector import commands  # noqa: PLC0415

    return commands.main(options.command, _environment(options), vars(options))


def _add_user(name: str, environment: Mapping[str, str]) -> int:
    from .dashboard import add_user  # noqa: PLC0415

    return add_user.main(name, environment)


def _serve(command: str, environment: Mapping[str, str]) -> int:
    """Run the parts *command* names until SIGTERM or Ctrl-C, then drain them in reverse."""
    from .collector.allocator import give_back_what_is_freed, search_garbage_seldom  # noqa: PLC0415
    from .collector.config import CollectorConfig  # noqa: PLC0415
    from .collector.opening import open_store, places  # noqa: PLC0415

    give_back_what_is_freed()
    _log_to_stderr()
    stopped = _stop_on_signals()
    settings = CollectorConfig.from_env(environment)
    with ExitStack() as stack:
        store = open_store(settings)
        stack.callback(store.close)
        lines = places(settings)
        # All are made, and so all settings read, before the first one starts.
        for part, line in _parts(command, environment, store):
            part.start()
            stack.callback(part.stop)
            lines.append(line())
        search_garbage_seldom()
        print(f"stagelens {__version__}", *lines, sep="\n  ", flush=True)
        # Not for ever: the signal may be another thread's, and then nothing wakes this one, which is to handle it.
        while not stopped.wait(_LOOK_SECONDS):
            pass
        print("stagelens: stopping, finishing what was accepted", flush=True)
    return 0


def _parts(command: str, environment: Mapping[str, str], store: Store) -> list[tuple[Part, Callable[[], str]]]:
    """Return the parts *command* runs, each with what to say of it once it has started."""
    if command == "collector":
        return [_told(_collector(environment, store))]
    from .alerts.serve import Alerts, AlertsConfig  # noqa: PLC0415

    alerts = Alerts(AlertsConfig.from_env(environment), store)
    parts: list[tuple[Part, Callable[[], str]]] = []
    if command == "up":
        collector = _collector(environment, store)
        collector.metrics.include(alerts.metrics)
        parts.append(_told(collector))
    if command in ("up", "alerts"):
        parts.append((alerts, lambda: f"alerts     {alerts.place}"))
    if command in ("up", "dashboard"):
        from .dashboard.serve import Dashboard, DashboardConfig  # noqa: PLC0415

        dashboard = Dashboard(DashboardConfig.from_env(environment), store, alerts.reader)
        parts.append((dashboard, lambda: f"dashboard  {_url(dashboard.address)}"))
    return parts


def _collector(environment: Mapping[str, str], store: Store) -> Collector:
    from .collector.config_file import LiveConfig  # noqa: PLC0415
    from .collector.serve import Collector, CollectorConfig  # noqa: PLC0415

    config = CollectorConfig.from_env(environment)
    return Collector(config, store, file=LiveConfig(config.config_file, environment))


def _told(collector: Collector) -> tuple[Part, Callable[[], str]]:
    return collector, lambda: "\n  ".join(collector.places)


def _log_to_stderr() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    # What these say when all is well is of no use to an operator.
    for library in ("alembic", "httpx", "uvicorn", "waitress", "werkzeug"):
        logging.getLogger(library).setLevel(logging.WARNING)


def _url(address: tuple[str, int]) -> str:
    return f"http://{address[0]}:{address[1]}"


def _stop_on_signals() -> threading.Event:
    """Return an event that SIGTERM and the first Ctrl-C set; a second Ctrl-C ends at once."""
    stopped = threading.Event()

    def on_signal(number: int, _frame: FrameType | None) -> None:
        stopped.set()
        signal.signal(number, signal.SIG_DFL)

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    return stopped


if __name__ == "__main__":
    sys.exit(main())
