"""Processes that deliver or evaluate alerts until a test kills them, forked from one process that has loaded all modules.

As a program this module reads commands from its input. `deliver {"database": …, "receivers": {kind: url}, "lease_seconds": …}`
and `watch {"NAME": …}` (`stagelens alerts` with that environment) print the id of the new process. `kill ID` prints a line when
the process is dead. At the end of the input all processes are killed.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx

from stagelens import __main__ as command_line
from stagelens.alerts.delivery import channel
from stagelens.alerts.delivery.channel import Channel, Refresh
from stagelens.alerts.delivery.channels.alertmanager import AlertmanagerChannel
from stagelens.alerts.delivery.channels.email import EmailChannel
from stagelens.alerts.delivery.channels.pagerduty import PagerDutyChannel
from stagelens.alerts.delivery.channels.slack import SlackBot, SlackWebhook
from stagelens.alerts.delivery.channels.webhook import WebhookChannel
from stagelens.alerts.delivery.outbox import DeliveryWorker
from stagelens.store import Store
from stagelens.store.lease import new_holder

ROOT = Path(__file__).parents[2]
# Longer than a slow response takes, so that only a missing response is an unknown outcome. [seconds]
TIMEOUT_SECONDS = 60.0
# Shorter than the real interval of one minute. [seconds]
REMINDED = Refresh(every_seconds=1.0, after_end_seconds=5.0)


class Hurried(random.Random):
    def uniform(self, a: float, b: float) -> float:
        return min(super().uniform(a, b) / 20, 0.5)


class AlertProcesses:
    """Starts and kills sender processes.

    Args:
        quiet: Whether the log output of the processes is discarded.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.alerts.alert_processes"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if quiet else None,
            text=True,
            bufsize=1,
        )

    def start(
        self,
        database: str,
        receivers: Mapping[str, str],
        lease_seconds: float = 1.0,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> int:
        order = {
            "database": database,
            "receivers": dict(receivers),
            "lease_seconds": lease_seconds,
            "timeout_seconds": timeout_seconds,
        }
        return int(self._send_command(f"deliver {json.dumps(order)}"))

    def watch(self, environment: Mapping[str, str]) -> int:
        return int(self._send_command(f"watch {json.dumps(dict(environment))}"))

    def kill(self, process: int) -> None:
        self._send_command(f"kill {process}")

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def _send_command(self, command: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(command + "\n")
        return self._process.stdout.readline()


def channel_of(kind: str, url: str) -> Channel:
    host, port = "127.0.0.1", int(url.rpartition(":")[2])
    channels: dict[str, Channel] = {
        "slack": SlackWebhook("slack", f"{url}/services/T0/B0/x", gap_seconds=0.0),
        "slack_bot": SlackBot("slack_bot", "xoxb-1-2-secret", "C0123456789", base_url=f"{url}/api", gap_seconds=0.0),
        "pagerduty": PagerDutyChannel("pagerduty", "K" * 32, url, gap_seconds=0.0),
        "alertmanager": AlertmanagerChannel("alertmanager", url, refresh=REMINDED),
        "email": EmailChannel("email", host, "alerts@example.com", ("oncall@example.com",), security="none", port=port),
        "webhook": WebhookChannel("webhook", f"{url}/alerts", "s3cret"),
    }
    return channels[kind]


def deliver(database: str, receivers: Mapping[str, str], lease_seconds: float, timeout_seconds: float) -> None:
    channel.TIMEOUT = httpx.Timeout(timeout_seconds)
    store, holder = Store.open(database), new_holder()
    for kind, url in receivers.items():
        DeliveryWorker(store, channel_of(kind, url), holder, lease_seconds=lease_seconds, rng=Hurried()).start()
    signal.pause()


def watch(**environment: str) -> None:
    os.environ.update(environment)
    # Only responses to commands go to the standard output of this process.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    command_line.main(["alerts"])


def main() -> None:
    # Loaded before the first fork, because `stagelens alerts` imports it when it runs.
    importlib.import_module("stagelens.alerts.serve")
    duties = {"deliver": deliver, "watch": watch}
    alive: set[int] = set()
    for command in sys.stdin:
        verb, _, argument = command.partition(" ")
        if verb in duties:
            pid = _child(duties[verb], json.loads(argument))
            alive.add(pid)
        else:
            pid = int(argument)
            _kill(pid)
            alive.discard(pid)
        print(pid, flush=True)
    for process in alive:
        _kill(process)


def _child(duty: Callable[..., None], order: Mapping[str, Any]) -> int:
    process = os.fork()
    if process:
        return process
    try:
        duty(**order)
    except BaseException:  # noqa: BLE001 - it is said, and the process ends
        traceback.print_exc()
    finally:
        os._exit(0)


def _kill(process: int) -> None:
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)


if __name__ == "__main__":
    main()
