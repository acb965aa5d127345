"""Delivery as a whole: real HTTP, receivers that enforce the vendors' rules and fail half of the time, and a kill -9.

The receivers fail by status, by a cut connection and by `Retry-After`. Now and then one holds a request and has the
sender killed: before it accepted, or (where the vendor recognises a repeat) after it accepted and before it answered.
"""

from __future__ import annotations

import json
import queue
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from stagelens.alerts import outbox
from stagelens.alerts.message import Message, Transition
from stagelens.alerts.reader import AlertsReader, Delivery
from stagelens.alerts.schema import incidents
from stagelens.alerts.slo_file import LiveFile
from stagelens.alerts.webhook import KEY_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER, sign
from stagelens.collector.store import Store

CHANNELS = ("slack", "pagerduty", "webhook")
DEADLINE_SECONDS = 60.0


class Receiver:
    """A vendor: takes what its rules allow, fails at random, and remembers what it took.

    Args:
        seed: Of its failures.
        kills: The numbers of the requests it holds and has the sender killed for.
        after: Whether it accepts those before it holds them, as only a vendor that recognises repeats may.
    """

    def __init__(self, seed: int, kills: set[int], *, after: bool) -> None:
        self.violations: list[str] = []
        self.accepted: list[str] = []
        self.held: queue.Queue[Receiver] = queue.Queue()
        self.requests = 0
        self.killed = 0
        self.refused = 0
        self._kills, self._after = kills, after
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()

    def check(self, path: str, headers: Any, body: bytes) -> str:
        """Return the name of the message; raise AssertionError when it breaks a rule."""
        raise NotImplementedError

    def take(self, name: str, body: bytes) -> tuple[int, bytes]:
        """Accept the message and return the answer."""
        raise NotImplementedError

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers["Content-Length"]))
        with self._lock:
            self.requests += 1
            number, fate = self.requests, self._random.random()
            try:
                name = self.check(handler.path, handler.headers, body)
            except (AssertionError, KeyError, ValueError) as error:
                self.violations.append(repr(error))
                _reply(handler, 400, b"invalid_payload")
                return
            hold = number in self._kills
            if hold and self._after:
                self.take(name, body)
        if hold:
            self._hold(handler)
            return
        if fate < 0.5:
            self.refused += 1
            _fail(handler, fate)
            return
        with self._lock:
            status, text = self.take(name, body)
        _reply(handler, status, text)

    def _hold(self, handler: BaseHTTPRequestHandler) -> None:
        """Keep the request without an answer until its sender is dead."""
        self.killed += 1
        self.held.put(self)
        handler.connection.settimeout(DEADLINE_SECONDS)
        try:
            while handler.connection.recv(1024):
                continue
        except OSError:
            pass
        handler.close_connection = True

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                """Answer."""
                receiver._answer(self)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name it is called by
                """Say nothing."""

        return Handler


class SlackReceiver(Receiver):
    """Slack's incoming webhook: https://docs.slack.dev/reference/block-kit/blocks."""

    def check(self, path: str, headers: Any, body: bytes) -> str:
        """Hold it to the rules."""
        assert path.startswith("/services/"), path
        assert headers["Content-Type"] == "application/json"
        post = json.loads(body)
        assert post["text"], "no_text"
        assert len(post["text"]) <= 4000
        blocks = post["blocks"]
        assert 1 <= len(blocks) <= 50
        assert len(json.dumps(blocks)) <= 13_200, "msg_blocks_too_long"
        ids = [block["block_id"] for block in blocks]
        assert len(set(ids)) == len(ids)
        for block in blocks:
            assert len(block["block_id"]) <= 255
            _check_block(block)
        return ids[0].rsplit(":", 1)[0]

    def take(self, name: str, body: bytes) -> tuple[int, bytes]:
        """Accept it."""
        del body
        self.accepted.append(name)
        return 200, b"ok"


def _check_block(block: dict[str, Any]) -> None:
    if block["type"] == "header":
        assert block["text"]["type"] == "plain_text"
        assert 1 <= len(block["text"]["text"]) <= 150
    elif block["type"] == "section":
        fields = block.get("fields", [])
        assert len(fields) <= 10
        assert all(1 <= len(field["text"]) <= 2000 for field in fields)
        assert fields or 1 <= len(block["text"]["text"]) <= 3000
    else:
        assert block["type"] == "context", block["type"]
        assert 1 <= len(block["elements"]) <= 10


class PagerDutyReceiver(Receiver):
    """PagerDuty's Events API v2: one alert for a dedup key until it is resolved."""

    def __init__(self, seed: int, kills: set[int]) -> None:
        super().__init__(seed, kills, after=True)
        self.open: set[str] = set()
        self.created: Counter[str] = Counter()
        self.resolved: Counter[str] = Counter()

    def check(self, path: str, headers: Any, body: bytes) -> str:
        """Hold it to the rules."""
        del headers
        assert path == "/v2/enqueue", path
        assert len(body) <= 512_000
        event = json.loads(body)
        assert len(event["routing_key"]) == 32
        assert event["event_action"] in {"trigger", "acknowledge", "resolve"}
        assert 1 <= len(event["dedup_key"]) <= 255
        alert = event["payload"]
        assert 1 <= len(alert["summary"]) <= 1024
        assert alert["source"]
        assert alert["severity"] in {"critical", "error", "warning", "info"}
        assert datetime.fromisoformat(alert["timestamp"]).tzinfo is not None
        assert all(link["href"].startswith("http") and link["text"] for link in event["links"])
        return event["dedup_key"]

    def take(self, name: str, body: bytes) -> tuple[int, bytes]:
        """Accept it."""
        action = json.loads(body)["event_action"]
        if action == "trigger" and name not in self.open:
            self.open.add(name)
            self.created[name] += 1
        elif action == "resolve" and name in self.open:
            self.open.remove(name)
            self.resolved[name] += 1
        return 202, b'{"status":"success"}'


class WebhookReceiver(Receiver):
    """A receiver that checks the signature and knows the idempotency keys it has seen."""

    def check(self, path: str, headers: Any, body: bytes) -> str:
        """Hold it to the rules."""
        assert path == "/alerts", path
        stamp = headers[TIMESTAMP_HEADER]
        assert abs(time.time() - int(stamp)) <= 300
        assert headers[SIGNATURE_HEADER] == sign("s3cret", stamp, body)
        assert json.loads(body)["key"] == headers[KEY_HEADER]
        return headers[KEY_HEADER]

    def take(self, name: str, body: bytes) -> tuple[int, bytes]:
        """Accept it."""
        del body
        if name not in self.accepted:
            self.accepted.append(name)
        return 200, b""


def _fail(handler: BaseHTTPRequestHandler, fate: float) -> None:
    """Fail in one of the ways a vendor may; *fate* is evenly spread below one half."""
    if fate < 0.1:
        handler.connection.shutdown(socket.SHUT_RDWR)
        handler.close_connection = True
    elif fate < 0.13:
        _reply(handler, 429, b"rate_limited", {"Retry-After": "1"})
    else:
        status = (500, 502, 503, 408, 425)[int(fate * 1000) % 5]
        _reply(handler, status, b"<html>not now</html>")


def _reply(handler: BaseHTTPRequestHandler, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
    handler.send_response(status)
    for key, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
        handler.send_header(key, value)
    handler.end_headers()
    handler.wfile.write(body)


class Sender:
    """The process that delivers to one receiver; killed and started again when the receiver says so."""

    def __init__(self, database: str, kind: str, receiver: Receiver) -> None:
        script = Path(__file__).with_name("delivery_process.py")
        self._command = [sys.executable, str(script), database, kind, receiver.url]
        self._process = subprocess.Popen(self._command)
        self._receiver = receiver

    def obey(self) -> None:
        """Die and come back, if the receiver holds a request for it."""
        if not self._receiver.held.empty():
            self._receiver.held.get()
            self.kill()
            self._process = subprocess.Popen(self._command)

    def kill(self) -> None:
        """Die without a word."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()


@contextmanager
def running(store: Store, receivers: Mapping[str, Receiver]) -> Generator[None]:
    """Deliver to each receiver from a process of its own, all over one database."""
    senders = [Sender(str(store.engine.url), kind, receiver) for kind, receiver in receivers.items()]
    done = threading.Event()

    def reap() -> None:
        while not done.wait(0.01):
            for sender in senders:
                sender.obey()

    reaper = threading.Thread(target=reap)
    reaper.start()
    try:
        yield
    finally:
        done.set()
        reaper.join()
        for sender in senders:
            sender.kill()
        for receiver in receivers.values():
            receiver.close()


def put(store: Store, message: Message, channels: Sequence[str] = CHANNELS) -> None:
    """Put *message* into the outbox, as an evaluation does."""
    with store.transaction() as connection:
        outbox.record(connection, message, channels)


def open_incident(store: Store, message: Message, name: str) -> Message:
    """Write an incident's row and return its first message."""
    opened = replace(message, incident=name)
    with store.transaction() as connection:
        connection.execute(incidents.insert().values(**_row(opened)))
    return opened


def _row(message: Message) -> dict[str, Any]:
    finding = message.finding
    return {
        "id": message.incident,
        "cause": f"slo:{message.incident}",
        "service": finding.service,
        "severity": finding.severity,
        "opened_at": message.at,
        "since": finding.since,
        "seen_at": message.at,
        "told_at": message.at,
        "ending": "",
        "sequence": message.sequence,
        "peak_burn": finding.burn,
        "finding": finding.to_json(),
    }


def deliveries(store: Store) -> list[Delivery]:
    """Return every delivery of every incident, as the dashboard sees them."""
    found = AlertsReader(store, LiveFile(None, {})).incidents(limit=1000)
    return [delivery for incident in found for delivery in incident.deliveries]


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < end, "not within the deadline"
        time.sleep(0.05)


def later(message: Message, transition: Transition) -> Message:
    """Return the message of the incident's next transition."""
    return replace(message, sequence=message.sequence + 1, transition=transition, ending="recovered")


@pytest.mark.timeout(180)
def test_every_incident_arrives_and_none_twice(store: Store, message: Message) -> None:
    """Receivers fail half of the time and the sender is killed in the middle: all is told, once and in order."""
    slack = SlackReceiver(1, {3, 17}, after=False)
    pagerduty = PagerDutyReceiver(2, {5, 21})
    webhook = WebhookReceiver(3, {9, 26}, after=True)
    message = replace(message, at=time.time(), opened_at=time.time())
    opened = [open_incident(store, message, f"sl-{number:02}") for number in range(10)]
    with running(store, {"slack": slack, "pagerduty": pagerduty, "webhook": webhook}):
        for one in opened:
            put(store, one)
        wait_until(lambda: all(row.state == "sent" for row in deliveries(store)))
        for one in opened:
            put(store, later(one, "resolved"))
        wait_until(lambda: all(row.state == "sent" for row in deliveries(store)))

    names = [one.incident for one in opened]
    assert [slack.violations, pagerduty.violations, webhook.violations] == [[], [], []]
    assert sorted(slack.accepted) == sorted(f"{name}:{number}" for name in names for number in (1, 2))
    assert sorted(webhook.accepted) == sorted(slack.accepted)
    assert all(slack.accepted.index(f"{name}:1") < slack.accepted.index(f"{name}:2") for name in names)
    assert pagerduty.created == Counter(names)
    assert pagerduty.resolved == Counter(names)
    assert [receiver.killed for receiver in (slack, pagerduty, webhook)] == [2, 2, 2]
    assert all(receiver.refused >= 5 for receiver in (slack, pagerduty, webhook))


class AcceptsAndIsCutOff(SlackReceiver):
    """Slack, which posts a message and whose sender dies before it reads the answer."""

    def __init__(self) -> None:
        super().__init__(4, {1}, after=True)
        self.bodies: list[str] = []

    def take(self, name: str, body: bytes) -> tuple[int, bytes]:
        """Accept it."""
        self.bodies.append(body.decode())
        return super().take(name, body)


def test_slack_is_told_that_it_may_hear_it_twice(store: Store, message: Message) -> None:
    """Slack cannot recognise a repeat: a message whose fate is unknown is not lost, and the second says what it is."""
    slack = AcceptsAndIsCutOff()
    message = replace(message, at=time.time(), opened_at=time.time())
    with running(store, {"slack": slack}):
        put(store, open_incident(store, message, "sl-cut"), ["slack"])
        wait_until(lambda: all(row.state == "sent" for row in deliveries(store)))

    assert slack.accepted == ["sl-cut:1", "sl-cut:1"]
    assert ["may be a repeat" in body for body in slack.bodies] == [False, True]
