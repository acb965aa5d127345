"""Lost and duplicate notifications while receivers fail and the delivering processes are killed.

    python benchmarks/delivery.py [--incidents N] [--kills K] [--failing F] [--seed S] [--database URL]

Six receivers enforce their vendors' documented rules over real HTTP and SMTP (those of the tests). Each fails a share of
its requests: cut connections, 408, 425, 429 with `Retry-After`, 5xx, pages of HTML with a 200, silence; three tenths of the
failures come *after* the message was accepted. Two processes deliver to all six from one database, and one of them, at
random, is killed (SIGKILL) at a random moment, K times, while N incidents are opened and resolved.

- opened, resolved: incidents the receiver shows as opened, and as resolved, of N.
- twice: messages that people see a second time, because the receiver does not recognize the repeat.
- lost, disorder: incidents that were not opened or not resolved; those resolved before they were opened.
- requests, failed: requests to the receiver, and those that it failed.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from sqlalchemy import select
from tables import Table

# The tests use the same receivers.
sys.path.insert(0, str(Path(__file__).parents[1]))

from stagelens.alerts import commands
from stagelens.alerts.delivery.message import Message
from stagelens.alerts.schema import outbox
from stagelens.store import Store
from tests.alerts.alert_processes import AlertProcesses
from tests.alerts.delivery.test_delivery import later, open_incident, put
from tests.alerts.mail_server import MailServer
from tests.alerts.receiver import Moods, Receiver
from tests.alerts.slack_workspace import SlackWorkspace
from tests.alerts.vendors import AlertmanagerApi, PagerDutyService, SignedHook, SlackHook

INCIDENTS, KILLS, FAILING, SEED = 30, 100, 0.5, 1
# Longer than a receiver that says nothing is waited for, or two processes would send one message. [seconds]
LEASE_SECONDS = 4.0
# A receiver that says nothing is given up soon.
TIMEOUT_SECONDS = 0.6
SENDERS = 2
# How long a sender lives, and how many incidents go on at once. [seconds], [count]
LIFE_SECONDS, AT_ONCE = (0.2, 1.5), 6
DEADLINE_SECONDS = 1800.0


@dataclass(frozen=True, slots=True)
class ReceivedMessages:
    names: list[tuple[str, int]]

    def seen(self, sequence: int) -> Counter[str]:
        return Counter(incident for incident, number in self.names if number == sequence)


def main() -> None:
    options = _options()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        database = options.database or f"sqlite:///{folder}/delivery.db"
        store = Store.open(database)
        stack.callback(store.close)
        receivers = _receivers(options.seed, options.failing)
        for receiver in receivers.values():
            stack.callback(receiver.close)
        began = time.monotonic()
        killed = _run(store, database, receivers, options)
        _report(receivers, options.incidents, killed, time.monotonic() - began)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--incidents", type=int, default=INCIDENTS, help="how many (default: %(default)s)")
    parser.add_argument("--kills", type=int, default=KILLS, help="how often a sender is killed (default: %(default)s)")
    parser.add_argument(
        "--failing", type=float, default=FAILING, help="share of failed requests (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=SEED, help="of failures and kills (default: %(default)s)")
    parser.add_argument("--database", default="", help="where the outbox is (default: a new SQLite file)")
    return parser.parse_args()


def _receivers(seed: int, failing: float) -> dict[str, Receiver | MailServer]:
    moods = [Moods(seed + number, failing, after=True, silent=True) for number in range(6)]
    return {
        "slack": SlackHook(moods[0]),
        "slack_bot": SlackWorkspace(moods[1]),
        "pagerduty": PagerDutyService(moods[2]),
        "alertmanager": AlertmanagerApi(moods[3]),
        "email": MailServer(moods[4]),
        "webhook": SignedHook(moods[5]),
    }


def _run(store: Store, database: str, receivers: dict[str, Receiver | MailServer], options: argparse.Namespace) -> int:
    addresses = {kind: receiver.url for kind, receiver in receivers.items()}
    processes = AlertProcesses(quiet=True)
    senders = [processes.start(database, addresses, LEASE_SECONDS, TIMEOUT_SECONDS) for _ in range(SENDERS)]
    dice, done, killed = random.Random(options.seed), threading.Event(), 0
    opening = threading.Thread(
        target=_open_incidents, args=(store, tuple(receivers), options.incidents, done), daemon=True
    )
    opening.start()
    end = time.monotonic() + DEADLINE_SECONDS
    while not done.is_set() and time.monotonic() < end:
        done.wait(dice.uniform(*LIFE_SECONDS) / SENDERS)
        if killed < options.kills and not done.is_set():
            chosen = dice.randrange(SENDERS)
            processes.kill(senders[chosen])
            senders[chosen] = processes.start(database, addresses, LEASE_SECONDS, TIMEOUT_SECONDS)
            killed += 1
    processes.close()
    return killed


def _open_incidents(store: Store, channels: Sequence[str], number: int, done: threading.Event) -> None:
    waiting = [_first(index) for index in range(number)]
    going: dict[str, Message] = {}
    while waiting or going:
        while waiting and len(going) < AT_ONCE:
            message = waiting.pop()
            going[message.incident] = open_incident(store, message, message.incident)
            put(store, message, channels)
        for incident in _settled(store, going):
            message = going.pop(incident)
            if not message.resolved:
                going[incident] = replace(later(message, "resolved"), at=time.time())
                put(store, going[incident], channels)
        time.sleep(0.05)
    done.set()


def _first(index: int) -> Message:
    message = commands.sample_message(time.time())
    finding = replace(message.finding, name=f"slo-{index}", severity="page")
    return replace(message, incident=f"sl-{index:04}", finding=finding)


def _settled(store: Store, going: dict[str, Message]) -> list[str]:
    """Return the incidents of which every channel took the last message."""
    unsettled = select(outbox.c.incident).where(outbox.c.state.in_(("waiting", "sending")))
    with store.engine.connect() as connection:
        open_ones = set(connection.scalars(unsettled))
    return [incident for incident in going if incident not in open_ones]


def _received(receiver: Receiver | MailServer) -> ReceivedMessages:
    match receiver:
        case SlackHook() | SignedHook():
            names = list(receiver.accepted)
        case SlackWorkspace():
            names = [post["said"][0]["metadata"]["event_payload"]["key"] for post in receiver.messages]
        case MailServer():
            names = [name.strip("<>").partition("@")[0].replace(".", ":") for name in receiver.ids]
        case PagerDutyService():
            names = [f"{name}:1" for name in receiver.created.elements()]
            names += [f"{name}:2" for name in receiver.resolved.elements()]
        case AlertmanagerApi():
            names = [f"{name}:1" for name in receiver.opened.elements()]
            names += [f"{name}:2" for name in receiver.resolved.elements()]
        case _:
            raise TypeError(receiver)
    parts = [name.rpartition(":") for name in names]
    return ReceivedMessages([(incident, int(sequence)) for incident, _, sequence in parts])


def _report(receivers: dict[str, Receiver | MailServer], number: int, killed: int, seconds: float) -> None:
    title = f"{number} incidents, {killed} kills, {seconds:.0f} s"
    table = Table(title, "opened", "resolved", "twice", "lost", "disorder", "requests", "failed")
    for kind, receiver in receivers.items():
        received = _received(receiver)
        opened, resolved = received.seen(1), received.seen(2)
        twice = sum(opened.values()) + sum(resolved.values()) - len(opened) - len(resolved)
        lost = 2 * number - len(opened) - len(resolved)
        disorder = sum(
            received.names.index((name, 2)) < received.names.index((name, 1))
            for name in opened.keys() & resolved.keys()
        )
        row = (len(opened), len(resolved), twice, lost, disorder, receiver.requests, receiver.refused)
        table.row(kind, *(str(cell) for cell in row))
        if isinstance(receiver, SlackHook):
            table.note(kind, f"of those seen twice, {_marked(receiver)} say that they may be a repeat")
        if receiver.violations:
            table.note(kind, f"broke rules: {receiver.violations[:3]}")
    table.print()


def _marked(receiver: SlackHook) -> int:
    """Return how many messages that were there already say so."""
    posts = list(zip(receiver.accepted, receiver.bodies, strict=True))
    again = [body for number, (name, body) in enumerate(posts) if name in receiver.accepted[:number]]
    return sum("may be a repeat" in body for body in again)


if __name__ == "__main__":
    main()
