"""Upgrade from version 0.1.0: its database, and what its agent sends.

The files in `upgrade/` were written by version 0.1.0 (commit 133ba35e): a database with three services, objectives, incidents, events
and traces; the API's responses about it; and the exports of an agent that timed 300 requests.
"""

from __future__ import annotations

import base64
import json
import lzma
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from stagelens.alerts.objectives.slo_file import LiveSloFile
from stagelens.alerts.reader import AlertsReader
from stagelens.collector.serve import Collector, CollectorConfig
from stagelens.dashboard.config import DashboardConfig
from stagelens.dashboard.web.app import Dashboard
from stagelens.store import Store
from tests.dashboard.served_versions import NOW

OLD = Path(__file__).parent / "upgrade"
ANSWERS: dict[str, Any] = json.loads((OLD / "answers.json").read_text(encoding="utf-8"))
# When the exports were recorded [Unix seconds].
EXPORTED = 1_795_879_780.0
# The revision counts writes to the store, and a migration can be one.
VARYING = ("revision",)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> FlaskClient:
    """A client of the dashboard of the old database, opened by this version."""
    path = tmp_path_factory.mktemp("upgrade") / "stagelens.db"
    path.write_bytes(lzma.decompress((OLD / "stagelens-0.1.0.db.xz").read_bytes()))
    store = Store.open(f"sqlite:///{path}", clock=NOW.timestamp)
    alerts = AlertsReader(store, LiveSloFile(OLD / "slo.yaml", {}))
    return Dashboard(DashboardConfig(), store, alerts, clock=NOW.timestamp).server.test_client()


def retained(old: Any, new: Any) -> Any:
    """Return *new* without the fields that *old* does not have: new versions add fields to the API, and columns to its tables."""
    if isinstance(old, dict):
        kept = {key: retained(value, new.get(key)) for key, value in old.items() if key not in VARYING}
        if "columns" in old and "rows" in old:
            names = [each["name"] for each in new["columns"]]
            places = [names.index(each["name"]) for each in old["columns"]]
            chosen = [[row[place] for place in places] for row in new["rows"]]
            kept |= {"columns": [new["columns"][place] for place in places], "rows": retained(old["rows"], chosen)}
        return kept
    if isinstance(old, list) and len(old) == len(new):
        return [retained(*pair) for pair in zip(old, new, strict=True)]
    return pytest.approx(old, rel=1e-9) if isinstance(new, float) and new == pytest.approx(old, rel=1e-9) else new


@pytest.mark.parametrize("address", ANSWERS)
def test_an_old_database_gives_the_same_answers(client: FlaskClient, address: str) -> None:
    old = ANSWERS[address]

    found = retained(old, client.get(f"/api/v1/{address}").json)

    assert found == {key: value for key, value in old.items() if key not in VARYING}


def test_exports_of_an_old_agent_are_counted(tmp_path: Path) -> None:
    store = Store.open(f"sqlite:///{tmp_path / 'own.db'}", clock=lambda: EXPORTED)
    collector = Collector(CollectorConfig(port=0), store, clock=lambda: EXPORTED)
    collector.start()
    posts = json.loads((OLD / "agent-0.1.0.json").read_text(encoding="utf-8"))
    for post in [*posts, posts[0]]:
        address = "http://{}:{}{}".format(*collector.address, post["path"])
        request = urllib.request.Request(address, base64.b64decode(post["body"]), post["headers"])
        with urllib.request.urlopen(request) as response:
            assert response.status == 200
    collector.stop()
    dashboard = Dashboard(DashboardConfig(), store, clock=lambda: EXPORTED).server.test_client()
    found: Any = dashboard.get("/api/v1/query/breakdown?service=old-service&version=7&p=50").json
    store.close()

    assert found["requests"] == 300
    assert {"preprocess", "forward"} <= {each["name"] for each in found["columns"]}
