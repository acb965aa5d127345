"""Simulated vendors by their documentation: validation and deduplication."""

from __future__ import annotations

import json
import time
from collections import Counter
from datetime import datetime
from typing import Any

from stagelens.alerts.delivery.channels.webhook import KEY_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER, sign_body
from tests.alerts.blockkit import check_blocks
from tests.alerts.receiver import Moods, Receiver


class SlackHook(Receiver):
    """Incoming webhook of Slack: https://docs.slack.dev/messaging/sending-messages-using-incoming-webhooks."""

    def __init__(self, moods: Moods) -> None:
        super().__init__(moods)
        self.accepted: list[str] = []
        self.bodies: list[str] = []

    def check(self, path: str, headers: Any, body: bytes) -> None:
        assert path.startswith("/services/"), path
        assert headers["Content-Type"] == "application/json"
        post = json.loads(body)
        assert post["text"], "no_text"
        assert len(post["text"]) <= 4000
        check_blocks(post["blocks"])

    def take(self, path: str, headers: Any, body: bytes) -> tuple[int, bytes]:
        del path, headers
        self.bodies.append(body.decode())
        self.accepted.append(json.loads(body)["blocks"][0]["block_id"].rsplit(":", 1)[0])
        return 200, b"ok"


class PagerDutyService(Receiver):
    def __init__(self, moods: Moods) -> None:
        super().__init__(moods)
        self.open: set[str] = set()
        self.acknowledged: set[str] = set()
        self.created: Counter[str] = Counter()
        self.resolved: Counter[str] = Counter()
        self.changes: list[dict[str, Any]] = []

    def check(self, path: str, headers: Any, body: bytes) -> None:
        del headers
        assert path in {"/v2/enqueue", "/v2/change/enqueue"}, path
        assert len(body) <= 512_000
        event = json.loads(body)
        assert len(event["routing_key"]) == 32
        alert = event["payload"]
        assert 1 <= len(alert["summary"]) <= 1024
        assert datetime.fromisoformat(alert["timestamp"]).tzinfo is not None
        assert all(link["href"].startswith("http") and link["text"] for link in event.get("links", []))
        # https://developer.pagerduty.com/docs/events-api-v2/trigger-events/: the image must be served via HTTPS
        assert all(image["src"].startswith("https://") for image in event.get("images", []))
        if path == "/v2/change/enqueue":
            assert set(event) <= {"routing_key", "payload", "links", "images"}
            assert set(alert) <= {"summary", "source", "timestamp", "custom_details"}
            return
        assert event["event_action"] in {"trigger", "acknowledge", "resolve"}
        assert 1 <= len(event["dedup_key"]) <= 255
        assert alert["source"]
        assert alert["severity"] in {"critical", "error", "warning", "info"}

    def take(self, path: str, headers: Any, body: bytes) -> tuple[int, bytes]:
        del headers
        event = json.loads(body)
        if path == "/v2/change/enqueue":
            self.changes.append(event)
        else:
            self._enqueue(event["event_action"], event["dedup_key"])
        return 202, b'{"status":"success"}'

    def _enqueue(self, action: str, name: str) -> None:
        if action == "trigger" and name not in self.open:
            self.open.add(name)
            self.created[name] += 1
        elif action == "acknowledge" and name in self.open:
            self.acknowledged.add(name)
        elif action == "resolve" and name in self.open:
            self.open.remove(name)
            self.resolved[name] += 1


class SignedHook(Receiver):
    # Any 2xx is a success, because a sender cannot distinguish the page of a proxy.
    garbage = False

    def __init__(self, moods: Moods) -> None:
        super().__init__(moods)
        self.accepted: list[str] = []

    def check(self, path: str, headers: Any, body: bytes) -> None:
        assert path == "/alerts", path
        stamp = headers[TIMESTAMP_HEADER]
        assert abs(time.time() - int(stamp)) <= 300
        assert headers[SIGNATURE_HEADER] == sign_body("s3cret", stamp, body)
        assert json.loads(body)["key"] == headers[KEY_HEADER]

    def take(self, path: str, headers: Any, body: bytes) -> tuple[int, bytes]:
        del path, body
        if headers[KEY_HEADER] not in self.accepted:
            self.accepted.append(headers[KEY_HEADER])
        return 200, b""


class AlertmanagerApi(Receiver):
    """API v2 of Alertmanager: labels identify an alert, which expires unless it is repeated."""

    # The response is an empty 200, which a sender cannot distinguish from the page of a proxy.
    garbage = False

    def __init__(self, moods: Moods) -> None:
        super().__init__(moods)
        self.firing: set[str] = set()
        self.opened: Counter[str] = Counter()
        self.resolved: Counter[str] = Counter()

    def check(self, path: str, headers: Any, body: bytes) -> None:
        assert path == "/api/v2/alerts", path
        assert headers["Content-Type"] == "application/json"
        for alert in json.loads(body):
            assert alert["labels"]["alertname"]
            assert all(isinstance(value, str) for part in ("labels", "annotations") for value in alert[part].values())
            assert datetime.fromisoformat(alert["startsAt"]) <= datetime.fromisoformat(alert["endsAt"])

    def take(self, path: str, headers: Any, body: bytes) -> tuple[int, bytes]:
        del path, headers
        for alert in json.loads(body):
            name, fires = (
                alert["annotations"]["incident"],
                datetime.fromisoformat(alert["endsAt"]).timestamp() > time.time(),
            )
            if fires and name not in self.firing:
                self.firing.add(name)
                self.opened[name] += 1
            elif not fires and name in self.firing:
                self.firing.remove(name)
                self.resolved[name] += 1
        return 200, b""
