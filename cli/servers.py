"""Commands that serve until they are stopped: `up`, `collector`, `alerts` and `dashboard`."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Protocol

from .. import __version__
from ..collector.allocator import reduce_gc_frequency, return_freed_memory, trim_heap
from ..collector.config import CollectorConfig, LiveConfig
from ..core import logs
from ..core.addresses import listening_url, server_url
from ..core.background_tasks import stop_on_signals
from ..core.settings.schema import ALERT_METRICS, ALERTS, COLLECTOR, DASHBOARD, LOGS, STORE
from ..store.store_factory import open_store, single_instance_lock, store_locations
from .commands import add_settings

if TYPE_CHECKING:
    from ..collector.serve import Collector
    from ..store import Store

SERVERS = {
    "up": (*STORE, *COLLECTOR, *DASHBOARD, *ALERTS),
    "collector": (*STORE, *COLLECTOR),
    "alerts": (*STORE, *ALERTS, *ALERT_METRICS),
    "dashboard": (*STORE, *DASHBOARD, *ALERTS),
}
# Poll interval of the main thread, which handles signals that were delivered to other threads. [seconds]
_POLL_SECONDS = 0.5
# Interval at which free memory is returned to the system. [seconds]
_TRIM_SECONDS = 60.0


class Part(Protocol):
    """Component of the server that runs in its own threads."""

    def start(self) -> None: ...

    def stop(self) -> None: ...


def up(parser: argparse.ArgumentParser) -> None:
    _define(parser, "up")


def collector(parser: argparse.ArgumentParser) -> None:
    _define(parser, "collector")
    text = "validate settings and collector file, show their effect, and exit"
    parser.add_argument("--check", action="store_true", help=text)


def alerts(parser: argparse.ArgumentParser) -> None:
    _define(parser, "alerts")


def dashboard(parser: argparse.ArgumentParser) -> None:
    _define(parser, "dashboard")
    text = "add user NAME to the file STAGELENS_DASHBOARD_USERS, prompt for the password, and exit"
    parser.add_argument("--add-user", metavar="NAME", help=text)


def _define(parser: argparse.ArgumentParser, name: str) -> None:
    add_settings(parser, (*SERVERS[name], *LOGS))
    parser.set_defaults(run=_run, server=name, check=False, add_user=None)


def _run(options: argparse.Namespace, environment: Mapping[str, str]) -> int:
    host = environment.get("STAGELENS_DASHBOARD_HOST") or "127.0.0.1"
    port = environment.get("STAGELENS_DASHBOARD_PORT") or "8600"
    # Links in alerts lead to the dashboard of this process unless configured otherwise.
    environment = {"STAGELENS_DASHBOARD_URL": server_url(host, port), **environment}
    if options.add_user:
        from ..dashboard.web.users import add_user_command  # noqa: PLC0415

        return add_user_command(options.add_user, environment)
    if options.check:
        from ..collector import check  # noqa: PLC0415

        return check.main(environment)
    _serve(options.server, environment)
    return 0


def _serve(server: str, environment: Mapping[str, str]) -> None:
    """Run the components of *server* until SIGTERM or Ctrl-C, then stop them in reverse order."""
    return_freed_memory()
    output = logs.configure_logging(environment)
    stopped = stop_on_signals()
    with output.report_errors(), ExitStack() as stack:
        settings = CollectorConfig.from_env(environment)
        if server == "up":
            stack.enter_context(single_instance_lock(settings))
        store = open_store(settings, reads=server == "dashboard")
        stack.callback(store.close)
        lines = store_locations(settings)
        # All components are created, and all settings read, before the first one starts.
        for part, line in server_parts(server, environment, store):
            part.start()
            stack.callback(part.stop)
            lines.append(line())
        reduce_gc_frequency()
        output.print_lines(f"stagelens {__version__}", *lines)
        # With a timeout: another thread may receive the signal, and only this thread can handle it.
        trim_at = 0.0
        while not stopped.wait(_POLL_SECONDS):
            if time.monotonic() >= trim_at:
                trim_heap()
                trim_at = time.monotonic() + _TRIM_SECONDS
        output.print_lines("stagelens: stopping; accepted data is stored first")


def server_parts(server: str, environment: Mapping[str, str], store: Store) -> Sequence[tuple[Part, Callable[[], str]]]:
    """Return the components of *server*, each with a function that returns its start message.

    The modules of other components are not imported: they would take memory.
    """
    if server == "collector":
        return [_collector_part(_collector(environment, store))]
    from ..alerts.serve import Alerts, AlertsConfig  # noqa: PLC0415

    notifying = Alerts(AlertsConfig.from_env(environment), store)
    parts: list[tuple[Part, Callable[[], str]]] = []
    if server == "up":
        receiving = _collector(environment, store)
        receiving.metrics.include(notifying.metrics)
        parts.append(_collector_part(receiving))
    if server in ("up", "alerts"):
        parts.append((notifying, lambda: f"alerts     {notifying.place}"))
    if server in ("up", "dashboard"):
        from ..dashboard.config import DashboardConfig  # noqa: PLC0415
        from ..dashboard.web.app import Dashboard  # noqa: PLC0415

        showing = Dashboard(DashboardConfig.from_env(environment), store, notifying.reader)
        parts.append((showing, lambda: f"dashboard  {listening_url(*showing.address)}"))
    return parts


def _collector(environment: Mapping[str, str], store: Store) -> Collector:
    from ..collector.serve import Collector  # noqa: PLC0415

    config = CollectorConfig.from_env(environment)
    return Collector(config, store, file=LiveConfig(config.config_file, environment))


def _collector_part(collector: Collector) -> tuple[Part, Callable[[], str]]:
    return collector, lambda: "\n  ".join(collector.places)
