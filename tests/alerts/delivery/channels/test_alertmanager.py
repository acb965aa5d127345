"""Alertmanager channel against a real Alertmanager: alerts appear in `amtool` and end when they are resolved."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from stagelens.alerts.delivery.channels.alertmanager import (
    ENDS_AFTER_SECONDS,
    REFRESH,
    AlertmanagerChannel,
    alert_payload,
)
from stagelens.alerts.delivery.message import Message
from tests.support.ports import free_port
from tests.support.process_output import Printing

pytestmark = pytest.mark.stacks

CONFIG = """\
route: {receiver: nobody, group_by: [alertname, service]}
receivers: [{name: nobody}]
"""


def _program(*names: str) -> str:
    found = next((path for path in map(shutil.which, names) if path), None)
    if found is None:
        if os.environ.get("CI"):
            pytest.fail(f"{names[0]} is not installed")
        pytest.skip(
            f"no {names[0]} on this machine; `apt-get install prometheus-alertmanager`, or `make test-stacks`, which does"
        )
    return found


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    program = _program("prometheus-alertmanager", "alertmanager")
    home = tmp_path_factory.mktemp("alertmanager")
    (home / "alertmanager.yml").write_text(CONFIG, encoding="utf-8")
    address = f"127.0.0.1:{free_port()}"
    options = [
        f"--config.file={home / 'alertmanager.yml'}",
        f"--storage.path={home}",
        f"--web.listen-address={address}",
    ]
    server = Printing([program, *options, "--cluster.listen-address="])
    try:
        server.wait_for("[Ll]istening on")
        yield f"http://{address}"
    finally:
        server.kill()


def shown(url: str) -> list[dict[str, Any]]:
    query = [_program("amtool"), f"--alertmanager.url={url}", "--output=json", "alert", "query", "service=magika-demo"]
    return json.loads(subprocess.run(query, check=True, capture_output=True).stdout)


def test_amtool_shows_our_alerts_until_they_are_resolved(url: str, message: Message) -> None:
    now = time.time()
    finding = replace(message.finding, since=now - 600, where={"environment": "prod"})
    message = replace(message, at=now, opened_at=now, finding=finding)
    channel = AlertmanagerChannel("alertmanager", url)
    channel.send(message)
    channel.send(message)
    firing = shown(url)
    channel.send(replace(message, sequence=2, transition="resolved", at=now, ending="recovered"))
    over = shown(url)

    assert [alert["status"]["state"] for alert in firing] == ["active"]
    assert firing[0]["labels"] == {
        "alertname": "magika-latency",
        "environment": "prod",
        "job": "stagelens",
        "kind": "latency",
        "service": "magika-demo",
        "severity": "page",
    }
    assert firing[0]["annotations"]["summary"].startswith("magika-demo: latency SLO burning 31")
    assert firing[0]["generatorURL"] == message.finding.link
    assert over == []


def test_a_firing_alert_ends_after_its_next_repetition(message: Message) -> None:
    alert = alert_payload(message, message.at)

    assert 4 * REFRESH.every_seconds <= ENDS_AFTER_SECONDS
    assert alert["endsAt"] == "2026-11-20T03:08:00.000+00:00"
    assert not any(character.isdigit() for value in alert["labels"].values() for character in value)
