"""Exactly-once notifications under failures: kill and suspend alert processes, fail half of all deliveries; then count.

python -m tests.chaos.incidents [--incidents 100] [--seed N] [--database URL]

Three processes of `stagelens alerts` watch one store and notify a webhook, PagerDuty and a mail server, which enforce the
documented rules. Services violate their SLOs and are removed from the SLO file again, each at another time; up to four incidents
are open at a time, so that each has separate messages. Meanwhile one process after the other is killed (SIGKILL), or suspended
(SIGSTOP) until another has taken over, and resumed (SIGCONT). Some processes are killed while a receiver holds their message,
before it accepts the message, or after that and before the process can record it.
"""

from __future__ import annotations

import argparse
import itertools
import queue
import random
import secrets
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from sqlalchemy import select, update

from stagelens.alerts.reader import Incident
from stagelens.alerts.schema import outbox
from stagelens.core.errors import StoreError
from stagelens.store import Store
from tests.alerts.mail_server import MailServer
from tests.alerts.receiver import Moods
from tests.alerts.traffic import Clock, Traffic
from tests.alerts.vendors import PagerDutyService, SignedHook
from tests.alerts.watch import Watch, events, lease_of, process_of

PROCESSES = 3
# [ratio of requests]
FAILING = 0.5
# More services that fail within minutes are grouped into one notification (analysis/policy/incidents.yaml).
_OPEN, _TOGETHER = 4, 2
# Share of the requests that a receiver holds after it accepted the message, and before. [ratio]
_HELD = 0.1
# Pause between two failures; longest suspension; deadline for each step. [seconds]
_CALM_SECONDS, _SUSPENDED_SECONDS, _TIMEOUT_SECONDS = (0.05, 0.8), 5.0, 300.0
_SLOW = {"forward": 0.020, "preprocess": 0.390}
_MINUTES = timedelta(minutes=10)


@dataclass
class Receivers:
    seed: int
    hook: SignedHook = field(init=False)
    pagerduty: PagerDutyService = field(init=False)
    mail: MailServer = field(init=False)

    def __post_init__(self) -> None:
        self.hook = SignedHook(self._moods(0))
        self.pagerduty = PagerDutyService(self._moods(1))
        self.mail = MailServer(self._moods(2))

    def _moods(self, number: int) -> Moods:
        rng = random.Random(self.seed + number)
        held, lost = (frozenset(at for at in range(10_000) if rng.random() < _HELD) for _ in range(2))
        return Moods(self.seed + number, FAILING, held, lost, after=True)

    @property
    def all(self) -> tuple[SignedHook, PagerDutyService, MailServer]:
        return self.hook, self.pagerduty, self.mail

    @property
    def channels(self) -> str:
        mail = f"host: 127.0.0.1, port: {self.mail.port}, security: none, from: a@example.com, to: [b@example.com]"
        return (
            f'  - {{kind: webhook, url: "{self.hook.url}/alerts", secret: s3cret}}\n'
            f'  - {{kind: pagerduty, base_url: "{self.pagerduty.url}", routing_key: {"K" * 32}}}\n'
            f"  - {{kind: email, {mail}}}\n"
        )

    def seen(self) -> dict[str, Counter[str]]:
        """Return how often people see each message, by receiver; `incident:1` is its opening, `incident:2` its end."""
        mails = [name.strip("<>").partition("@")[0].replace(".", ":") for name in self.mail.ids]
        pages = Counter({f"{name}:1": number for name, number in self.pagerduty.created.items()})
        ends = Counter({f"{name}:2": number for name, number in self.pagerduty.resolved.items()})
        return {"webhook": Counter(self.hook.accepted), "pagerduty": pages + ends, "email": Counter(mails)}


@dataclass(frozen=True)
class Outcome:
    services: Sequence[str]
    incidents: Sequence[Incident]
    seen: dict[str, Counter[str]]
    violations: Sequence[str]
    met: Counter[str]
    failed: tuple[int, int]

    def differences(self) -> list[str]:
        found = list(self.violations)
        if (names := sorted(incident.name for incident in self.incidents)) != sorted(self.services):
            found.append(f"incidents of {Counter(names) - Counter(self.services)} are too many")
            found.append(f"incidents of {Counter(self.services) - Counter(names)} are not there")
        found += [
            f"{incident.name}: {events(incident)} {incident.muted}"
            for incident in self.incidents
            if incident.muted or events(incident) != ["opened", "resolved"]
        ]
        due = Counter(f"{incident.id}:{number}" for incident in self.incidents for number in (1, 2))
        for receiver, seen in self.seen.items():
            found += [f"{receiver} has not seen {name}" for name in due - seen]
            found += [f"{receiver} has seen {name} too often" for name in seen - due]
        return found


class _Chaos:
    def __init__(self, watch: Watch, receivers: Receivers, rng: random.Random) -> None:
        self.met = Counter[str]()
        self._watch = watch
        self._receivers = receivers
        self._rng = rng
        self._processes = [watch.start() for _ in range(PROCESSES)]
        self._troubles = itertools.cycle((self._kill, self._suspend))

    def until(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + _TIMEOUT_SECONDS
        while not condition():
            assert time.monotonic() < end, "not within the deadline"
            time.sleep(self._rng.uniform(*_CALM_SECONDS))
            if self._kill_held():
                continue
            working = process_of(lease_of(self._watch.store).holder)
            process = (
                working
                if working in self._processes and self._rng.random() < 0.5
                else self._rng.choice(self._processes)
            )
            next(self._troubles)(process)
            self._let_time_go_by()

    def _kill_held(self) -> bool:
        sending = select(outbox.c.leased_by).where(outbox.c.state == "sending")
        found = set[int]()
        for kind, receiver in zip(("webhook", "pagerduty", "email"), self._receivers.all, strict=True):
            with suppress(queue.Empty):
                receiver.held.get_nowait()
                with self._watch.store.engine.connect() as connection:
                    holders = connection.scalars(sending.where(outbox.c.channel == kind))
                    found |= {process_of(holder) for holder in holders} & set(self._processes)
        for process in found:
            self._kill(process, "killed while a receiver held its message")
        return bool(found)

    def _kill(self, process: int, how: str = "killed") -> None:
        self._watch.kill(process)
        self._watch.forget(process)
        self._processes.remove(process)
        self._processes.append(self._watch.start())
        self.met[how] += 1

    def _suspend(self, process: int) -> None:
        at, end = lease_of(self._watch.store).done_at, time.monotonic() + _SUSPENDED_SECONDS
        with self._watch.suspended(process):
            try:
                self._watch.forget(process)
            except StoreError:
                # Suspended within a transaction: its database lock cannot be taken over.
                self.met["suspended in a transaction"] += 1
                return
            while time.monotonic() < end:
                found = lease_of(self._watch.store)
                if process_of(found.holder) != process and found.done_at > at:
                    break
                time.sleep(0.02)
        self.met["suspended"] += 1

    def _let_time_go_by(self) -> None:
        """Make all messages in back-off due now; their delays would take minutes."""
        with suppress(StoreError), self._watch.store.transaction() as connection:
            connection.execute(update(outbox).where(outbox.c.state == "waiting").values(next_at=0.0))


def run(watch: Watch, receivers: Receivers, incidents: int, seed: int) -> Outcome:
    rng = random.Random(seed)
    traffic = Traffic(watch.store, Clock(datetime.now(UTC)))
    watch.write_slos()
    chaos, services, standing = _Chaos(watch, receivers, rng), list[str](), list[str]()
    while standing or len(services) < incidents:
        ending = rng.sample(standing, rng.randint(0, min(_TOGETHER, len(standing))))
        number = rng.randint(0, min(_TOGETHER, _OPEN - len(standing), incidents - len(services)))
        starting = [f"shop-{len(services) + index}" for index in range(number)]
        for service in starting:
            traffic(datetime.now(UTC) - _MINUTES, _MINUTES, {50: _SLOW}, service=service)
        services += starting
        standing = [each for each in standing if each not in ending] + starting
        watch.write_slos(*standing)
        chaos.until(partial(_stand, watch, set(standing), set(services) - set(standing)))
    failed, came = (sum(getattr(each, name) for each in receivers.all) for name in ("refused", "requests"))
    violations = [wrong for each in receivers.all for wrong in each.violations]
    return Outcome(services, watch.incidents(), receivers.seen(), violations, chaos.met, (failed, came))


def _stand(watch: Watch, standing: set[str], ended: set[str]) -> bool:
    states = {incident.name: incident.state for incident in watch.incidents()}
    settled = {name for name, state in states.items() if state == "resolved"} >= ended
    return settled and standing <= {name for name, state in states.items() if state == "open"} and watch.is_settled()


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.chaos.incidents", description=__doc__)
    parser.add_argument("--incidents", type=int, default=100, help="number of incidents (default 100)")
    parser.add_argument("--seed", type=int, default=secrets.randbits(32), help="seed of a former run, to repeat it")
    parser.add_argument("--database", default="", help="URL of the store (default: a new SQLite file)")
    options = parser.parse_args()
    print(f"seed {options.seed}, {options.incidents} incidents", flush=True)
    started = time.monotonic()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        store = Store.open(options.database or f"sqlite:///{folder}/alerts.db")
        stack.callback(store.close)
        receivers = Receivers(options.seed)
        for receiver in receivers.all:
            stack.callback(receiver.close)
        watch = Watch(store, folder / "slo.yaml", receivers.channels)
        stack.callback(watch.processes.close)
        outcome = run(watch, receivers, options.incidents, options.seed)
    print(f"{', '.join(f'{what} x{often}' for what, often in outcome.met.most_common())}")
    print("{} of {} requests failed".format(*outcome.failed), f"in {time.monotonic() - started:.0f} s")
    differences = outcome.differences()
    print("\n".join(differences) or "every notification arrived exactly once")
    return int(bool(differences))


if __name__ == "__main__":
    sys.exit(main())
