"""Incidents on their pages, and what can be done about them: acknowledge, silence, end a silence, also from Slack."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from ipaddress import ip_network
from pathlib import Path
from queue import Queue
from random import Random
from threading import Barrier
from typing import Any
from urllib.parse import parse_qs, urlencode

import pytest
from flask import Flask
from flask.testing import FlaskClient
from sqlalchemy import func, select

from stagelens.alerts.delivery import outbox
from stagelens.alerts.delivery.channels.slack.blocks import ACCEPT, ACKNOWLEDGE, SILENCE
from stagelens.alerts.delivery.message import Finding, LatencyRegression
from stagelens.alerts.incidents import journal, silences
from stagelens.alerts.incidents.lifecycle import IncidentRecord
from stagelens.alerts.incidents.notification_rules import IncidentUpdate
from stagelens.alerts.reader import AlertsReader, Incident
from stagelens.alerts.schema import EVALUATION_LEASE
from stagelens.core.errors import ChannelError
from stagelens.dashboard.config import DashboardConfig
from stagelens.dashboard.source import Source
from stagelens.dashboard.web.app import build
from stagelens.store import Store, lease
from stagelens.store.schema import leases
from tests.alerts.receiver import Moods, Receiver
from tests.dashboard import many_incidents, notified_store
from tests.dashboard.notified_store import NOW
from tests.dashboard.rendering import check_views, client_of, csrf_headers, data_at, html_at, shown, source_of

SLO = """slos:
  - {name: checkout-latency, service: checkout, objective: 0.99, threshold: 250ms, window: 30d}
channels:
  - {kind: slack, token: xoxb-123456789-abcdef, channel: C0123456789, signing_secret: s3cret}
  - {kind: pagerduty, routing_key: "0123456789abcdef0123456789abcdef", webhook_secret: h00k}
"""


@pytest.fixture
def store(store: Store) -> Store:
    notified_store.fill(store)
    return store


@pytest.fixture
def source(store: Store, tmp_path: Path) -> Source:
    return source_of(store, tmp_path, SLO)


@pytest.fixture
def client(source: Source) -> FlaskClient:
    return build(source, DashboardConfig()).test_client()


@pytest.fixture
def csrf(client: FlaskClient) -> dict[str, str]:
    return csrf_headers(client)


def test_commands_are_formatted_as_code(open_store: Callable[..., Store]) -> None:
    browser = client_of(open_store("empty.db", clock=NOW.timestamp))

    assert '<code class="mono">stagelens alerts silence</code>' in browser.get("/incidents").text
    assert all('<code class="mono">stagelens up</code>' in browser.get(path).text for path in ("/slo", "/"))


def test_incidents_have_their_evidence_timeline_and_buttons(source: Source) -> None:
    check_views("incidents", source)


def incident_of(source: Source, name: str) -> Incident:
    found = source.incident_actions.incident(name)
    assert found is not None
    return found


def test_an_acknowledgement_is_confirmed_and_undone(source: Source, client: FlaskClient, csrf: dict[str, str]) -> None:
    name, path = notified_store.OPEN, f"/api/v1/incidents/{notified_store.OPEN}"
    done = client.post(f"{path}/acknowledge", json={}, headers=csrf).get_json()
    once, acknowledged = incident_of(source, name), shown(source, f"/incidents/{name}")
    undone, again = (client.post(f"{path}/unacknowledge", json={}, headers=csrf) for _ in range(2))
    page, found = shown(source, f"/incidents/{name}"), incident_of(source, name)

    assert done["summary"] == "a dashboard user acknowledged checkout-latency; notified: pagerduty, slack"
    assert "a dashboard user acknowledged it at 20 Nov 12:00" in acknowledged
    assert "Undo acknowledgement" in acknowledged
    assert once.acked_by == "a dashboard user"
    assert [row.transition for row in once.deliveries if row.channel == "slack"] == ["opened", "acknowledged"]
    assert undone.get_json()["acked_by"] == ""
    assert "PagerDuty stays acknowledged" in undone.get_json()["summary"]
    assert "PagerDuty stays acknowledged" in page
    assert "unacknowledged" in page
    assert again.status_code == 200
    assert [transition.event for transition in found.transitions] == ["opened", "acknowledged", "unacknowledged"]
    assert "a dashboard user undid the acknowledgement" in found.transitions[-1].headline
    assert [row.transition for row in found.deliveries if row.channel == "slack"][-1] == "unacknowledged"


def test_a_note_is_in_the_timeline_and_in_the_audit_log(
    source: Source, client: FlaskClient, csrf: dict[str, str]
) -> None:
    text = "disk <b>7</b> was full"
    made = client.post(f"/api/v1/incidents/{notified_store.OVER}/notes", json={"text": text}, headers=csrf)
    found = incident_of(source, notified_store.OVER)

    assert made.status_code == 201
    assert f"20 Nov 12:00 Note {text} by a dashboard user" in shown(source, f"/incidents/{notified_store.OVER}")
    assert (found.state, found.transitions[-1].notified) == ("resolved", 0)
    assert audited(source)[0][2:4] == ("add note", f"{notified_store.OVER}: {text}")


def test_silences_are_in_the_timeline(source: Source, store: Store, client: FlaskClient, csrf: dict[str, str]) -> None:
    made = client.post("/api/v1/silences", json={"service": "checkout", "for": "8h", "comment": "deploy"}, headers=csrf)
    running = shown(source, f"/incidents/{notified_store.OPEN}")
    client.post(f"/api/v1/silences/{json.loads(made.text)['id']}/end", json={}, headers=csrf)
    with store.transaction() as connection:
        silences.create_silence(
            connection,
            {"service": "checkout"},
            starts_at=NOW - timedelta(minutes=10),
            ends_at=NOW - timedelta(minutes=5),
            author="bob",
        )
    page = shown(source, f"/incidents/{notified_store.OPEN}")

    assert "Silenced service checkout until 20 Nov 20:00: deploy by a dashboard user" in running
    assert "Silence ended The silence of a dashboard user ended early by a dashboard user" in page
    assert "20 Nov 11:55 Silence expired The silence of bob expired" in page
    assert "severity ticket" not in page


@pytest.fixture
def crowd(open_store: Callable[..., Store], tmp_path: Path) -> Source:
    opened = open_store("crowd.db", clock=NOW.timestamp)
    many_incidents.fill(opened)
    return source_of(opened, tmp_path)


def incident_table(source: Source, query: str = "") -> list[list[str]]:
    tables = data_at(source, f"/incidents?{query}").tables
    return next((table.rows for table in tables if table.name == "Incidents"), [])


def test_pages_come_first_and_a_group_is_one_row(crowd: Source) -> None:
    rows, markup = incident_table(crowd), html_at(crowd, "/incidents")

    assert [row[1] for row in rows] == ["Page"] * (many_incidents.PAGES + 1) + ["Ticket"] * 2
    assert [row[0] for row in rows] == ["Acknowledged", "Recovering", *["Open"] * 8, "Resolved", "Open", "Open"]
    assert "19 more incidents in 19 services, 19 open" in rows[-1][2]
    assert markup.count("<details") == 2
    assert markup.count(' href="/incidents/sl-ticket') == many_incidents.TICKETS


def test_the_window_limits_the_list_and_says_what_it_leaves_out(crowd: Source) -> None:
    old, none = (
        "from={:.0f}&to={:.0f}".format(*((NOW - timedelta(hours=hour)).timestamp() * 1000 for hour in hours))
        for hours in ((91, 88), (504, 480))
    )

    assert [row[2].partition(":")[0] for row in incident_table(crowd, old)] == ["batch"]
    assert "51 more incidents outside of this window, 50 of them open. Show all" in shown(crowd, f"/incidents?{old}")
    assert "1 more incident outside of this window, none of them open" in shown(crowd, "/incidents")
    assert "52 more incidents outside of this window, 50 of them open" in shown(crowd, f"/incidents?{none}")
    assert "outside" not in shown(crowd, "/incidents?from=now-395d")


def test_the_page_of_an_objective_has_only_its_own_alerts(source: Source, store: Store) -> None:
    with store.transaction() as connection:
        claimed = outbox.claim_message(connection, "pagerduty", "tests", NOW.timestamp(), 60.0)
        assert claimed is not None
        outbox.mark_failed(connection, claimed, ChannelError("HTTP 403", permanent=True), NOW.timestamp(), Random(0))

    check_views("incidents_of_objective", source, "/slo/checkout-latency # Alert history")


def test_an_incident_without_new_data_has_no_state(store: Store, source: Source) -> None:
    with store.transaction() as connection:
        lease.hold(connection, EVALUATION_LEASE, "tests", NOW.timestamp(), 60.0)
        lease.note_done(connection, EVALUATION_LEASE, NOW.timestamp())
    found = {each.id: each.status for each in source.incidents()}

    assert found[notified_store.OPEN] == "no_data"
    assert found[notified_store.OVER] == "resolved"
    assert incident_table(source)[0][:2] == ["No data", "Page"]


@pytest.fixture
def slower(store: Store) -> str:
    name, at = "sl-00000000000000000004", NOW.timestamp() - 600
    shift = LatencyRegression(0.99, 0.252, 0.312, 1.18, 1.31, 48_210, 1800.0, 9.3)
    finding = Finding("tail", "search", "p99 was 252 ms", "tail", "ticket", at, shift=shift)
    incident = IncidentRecord(name, "tail:search", finding, at, at, at, sequence=1, peak=1.2, heard="open", story=name)
    with store.transaction() as connection:
        journal.write_update(connection, IncidentUpdate(incident, "opened", notifies=True), ("slack",), at)
    return name


def test_a_latency_regression_is_accepted_from_its_page(
    source: Source, client: FlaskClient, csrf: dict[str, str], slower: str
) -> None:
    before = shown(source, f"/incidents/{slower}")
    response = client.post(f"/api/v1/incidents/{slower}/accept", json={"why": "the new model"}, headers=csrf)
    found, page = incident_of(source, slower), shown(source, f"/incidents/{slower}")

    assert (response.status_code, response.get_json()["acked_by"]) == (200, "a dashboard user")
    assert ["Accept as baseline" in each for each in (before, page)] == [True, False]
    assert "a dashboard user accepted it as the new baseline" in page
    assert "by a dashboard user: the new model" in page
    assert "Accepted" in shown(source, "/incidents")
    assert (found.state, found.ending) == ("resolved", "accepted")
    assert [row.transition for row in found.deliveries] == ["opened", "resolved"]


def test_a_violated_objective_cannot_be_accepted(client: FlaskClient, csrf: dict[str, str]) -> None:
    paths = (notified_store.OPEN, notified_store.OVER, "sl-1")
    responses = [client.post(f"/api/v1/incidents/{name}/accept", json={}, headers=csrf) for name in paths]

    assert [each.status_code for each in responses] == [409, 409, 404]
    assert "the objective or threshold" in responses[0].get_json()["fix"]


def test_a_silence_is_created_and_ended_from_a_page(source: Source, client: FlaskClient, csrf: dict[str, str]) -> None:
    found = next(each for each in source.incidents() if each.state == "open" and not each.muted)
    before = shown(source, f"/incidents/{found.id}")
    body = {"service": found.service, "slo": found.name, "for": "8h", "comment": "deploy"}
    made = client.post("/api/v1/silences", json=body, headers=csrf)
    name, during = made.get_json()["id"], shown(source, f"/incidents/{found.id}")
    (silence,) = (each for each in source.incident_actions.silences() if each.id == name)
    ended = client.post(f"/api/v1/silences/{name}/end", json={}, headers=csrf)

    assert (made.status_code, ended.status_code) == (201, 200)
    assert silence.matchers == {"service": found.service, "slo": found.name}
    assert (silence.author, silence.comment) == ("a dashboard user", "deploy")
    assert name not in {each.id for each in source.incident_actions.silences()}
    assert [text in before for text in ("Silence 8h", "End silence now")] == [True, False]
    assert [text in during for text in ("Silence 8h", "End silence now", "Silenced until")] == [False, True, True]


@pytest.mark.parametrize(
    ("path", "body", "status", "error"),
    [
        ("incidents/sl-1/acknowledge", {}, 404, "there is no incident 'sl-1'"),
        (f"incidents/{notified_store.OVER}/acknowledge", {}, 404, "was resolved at"),
        (f"incidents/{notified_store.OVER}/unacknowledge", {}, 404, "was resolved at"),
        ("incidents/sl-1/notes", {"text": "x"}, 404, "there is no incident 'sl-1'"),
        (f"incidents/{notified_store.OPEN}/notes", {"text": " "}, 400, "the note is empty"),
        (f"incidents/{notified_store.OPEN}/notes", {"why": "x"}, 400, "why is not a known field"),
        ("silences", {}, 400, "a silence needs at least one of"),
        ("silences", {"service": "x", "for": "soon"}, 400, "for is 'soon'"),
        ("silences", {"service": "x", "for": "4000d"}, 400, "for is '4000d'"),
        ("silences", {"colour": "red"}, 400, "colour is not a known field"),
        ("silences", {"service": 7}, 400, "service is not a known field, or its value is not text"),
        ("silences", [], 400, "the body is not a JSON object"),
        ("silences/si-1/end", {}, 404, "there is no silence 'si-1'"),
    ],
)
def test_a_mistake_is_reported_with_its_fix(  # noqa: PLR0917 - two fixtures and a case
    client: FlaskClient, csrf: dict[str, str], path: str, body: object, status: int, error: str
) -> None:
    response = client.post(f"/api/v1/{path}", json=body, headers=csrf)

    assert response.status_code == status
    assert error in response.get_json()["error"]


@pytest.mark.parametrize(
    "path",
    [f"incidents/{notified_store.OPEN}/{each}" for each in ("acknowledge", "unacknowledge", "notes", "accept")]
    + ["silences", "silences/si-1/end"],
)
def test_incident_actions_need_a_csrf_token(client: FlaskClient, csrf: dict[str, str], path: str) -> None:
    foreign = {**csrf, "Origin": "https://evil.example"}
    attempts = [client.post(f"/api/v1/{path}", json={}), client.post(f"/api/v1/{path}", json={}, headers=foreign)]

    assert {attempt.status_code for attempt in attempts} == {403}


def pressed(action: str, incident: str = notified_store.OPEN, *, member: str = "U0ANN", url: str = "") -> bytes:
    payload = {
        "type": "block_actions",
        "user": {"id": member, "name": "ann"},
        "response_url": url,
        "actions": [{"action_id": action, "value": incident}],
    }
    return urlencode({"payload": json.dumps(payload)}).encode()


def signed(body: bytes, secret: str = "s3cret", *, after: float = 0) -> dict[str, str]:  # noqa: S107 - of a test
    at = str(int(NOW.timestamp() + after))
    mark = hmac.new(secret.encode(), b"v0:" + at.encode() + b":" + body, hashlib.sha256).hexdigest()
    return {"X-Slack-Request-Timestamp": at, "X-Slack-Signature": f"v0={mark}"}


def press(client: FlaskClient, body: bytes, **signature: Any) -> int:
    return client.post("/hooks/slack", data=body, headers=signed(body, **signature)).status_code


def test_a_button_in_slack_acknowledges_or_accepts(source: Source, client: FlaskClient, slower: str) -> None:
    body = pressed(ACKNOWLEDGE)
    wrong = press(client, body, secret="wrong")  # noqa: S106 - of a test
    statuses = [wrong, press(client, body), press(client, body)]
    accepting = press(client, pressed(ACCEPT, slower))
    found, accepted = incident_of(source, notified_store.OPEN), incident_of(source, slower)

    assert statuses == [401, 200, 200]
    assert found.acked_by == "ann"
    assert [row.event for row in found.transitions] == ["opened", "acknowledged"]
    assert (accepting, accepted.ending, accepted.acked_by) == (200, "accepted", "ann")


def audited(source: Source) -> list[tuple[str, ...]]:
    found = source.read.audit(NOW - timedelta(hours=1), NOW + timedelta(hours=1), 10)
    return [(each.person, each.origin, each.action, each.subject, each.service, each.outcome) for each in found]


def clicked(click: str = "") -> bytes:
    """Return the body of a click on the button that silences; *click*: id of the click, which all bodies of Slack have."""
    payload = json.loads(parse_qs(pressed(SILENCE).decode())["payload"][0])
    return urlencode({"payload": json.dumps(payload | ({"trigger_id": click} if click else {}))}).encode()


def silenced_by_ann(source: Source) -> list[str]:
    found = source.incident_actions.silences()
    return [each.id for each in found if each.author == "ann" and each.comment.startswith("from ")]


@pytest.mark.parametrize("click", ["", "398738663015.47445629121.803a0bc8"])
def test_a_replayed_click_in_slack_does_nothing(store: Store, source: Source, client: FlaskClient, click: str) -> None:
    body = clicked(click)
    press(client, body)
    (name,) = silenced_by_ann(source)
    assert audited(source) == [("ann", "slack", "silence", notified_store.OPEN, "checkout", "done")]
    (silence,) = (each for each in source.incident_actions.silences() if each.id == name)
    assert dict(silence.matchers) == {"service": "checkout", "slo": "checkout-latency"}
    source.incident_actions.unsilence(name)
    reopened = Store.open(str(store.engine.url), clock=NOW.timestamp)
    again = [press(each, body) for each in (client, other_client(source, store), other_client(source, reopened))]
    reopened.close()

    assert again == [200] * 3
    assert silenced_by_ann(source) == []
    assert [row[2] for row in audited(source)] == ["silence"]


def other_client(source: Source, store: Store) -> FlaskClient:
    """Return a client of another dashboard with the same objectives."""
    assert source.slo_file is not None
    return client_of(store, AlertsReader(store, source.slo_file))


def test_slack_may_deliver_a_click_again(source: Source, client: FlaskClient) -> None:
    first, second = clicked("1.1"), clicked("2.1")
    retried = signed(first, after=60) | {"X-Slack-Retry-Num": "1", "X-Slack-Retry-Reason": "http_timeout"}
    statuses = [press(client, first), client.post("/hooks/slack", data=first, headers=retried).status_code]

    assert [*statuses, press(client, second)] == [200] * 3
    assert len(silenced_by_ann(source)) == 2


def test_concurrent_replays_act_once(store: Store, source: Source, client: FlaskClient) -> None:
    other = Store.open(str(store.engine.url), clock=NOW.timestamp)
    body, together = clicked("1.1"), Barrier(8)

    def send(server: Flask) -> int:
        together.wait(60)
        return press(server.test_client(), body)

    with ThreadPoolExecutor(8) as pool:
        statuses = list(pool.map(send, [client.application, other_client(source, other).application] * 4))
    other.close()

    assert statuses == [200] * 8
    assert len(silenced_by_ann(source)) == 1


def test_a_click_that_could_not_be_stored_may_be_sent_again(store: Store, source: Source, client: FlaskClient) -> None:
    body, statuses = clicked("1.1"), list[int]()
    full = "CREATE TRIGGER full BEFORE INSERT ON silences BEGIN SELECT RAISE(ABORT, 'disk full'); END"
    for statement in (full, "DROP TRIGGER full"):
        with store.transaction() as connection:
            connection.exec_driver_sql(statement)
        statuses.append(press(client, body))

    assert statuses == [500, 200]
    assert len(silenced_by_ann(source)) == 1


def test_executed_requests_are_forgotten_when_their_signature_is_too_old(
    store: Store, source: Source, client: FlaskClient
) -> None:
    for hours in range(0, 72, 6):
        source.clock = (NOW + timedelta(hours=hours)).timestamp
        assert press(client, clicked(f"{hours}.1"), after=3600 * hours) == 200
    with store.engine.connect() as connection:
        remembered = connection.execute(select(func.count()).select_from(leases)).scalar()

    assert remembered == 1


class Hook(Receiver):
    """Address for messages to the user who clicked; keeps the messages in order."""

    def __init__(self) -> None:
        super().__init__(Moods(failing=0))
        self.messages: Queue[dict[str, Any]] = Queue()

    def take(self, path: str, headers: Any, body: bytes) -> tuple[int, bytes]:  # noqa: ARG002 - of the base class
        self.messages.put(json.loads(body))
        return 200, b"ok"


@pytest.fixture
def hook() -> Iterator[Hook]:
    receiver = Hook()
    yield receiver
    receiver.close()


def client_with(source: Source, tmp_path: Path, groups: str) -> FlaskClient:
    path = tmp_path / "access.yaml"
    path.write_text("groups:\n  - {name: sre, role: admin, users: [ada]}\n" + groups)
    config = DashboardConfig(access=path, proxy_header="X-User", trusted_proxies=(ip_network("127.0.0.0/8"),))
    return build(source, config).test_client()


def test_a_button_in_slack_needs_the_role_in_the_environment(
    store: Store, source: Source, tmp_path: Path, hook: Hook
) -> None:
    groups = "  - {name: shop, role: responder, environments: [prod], slack: [U0ANN]}\n"
    groups += "  - {name: guests, role: viewer, slack: [U0BOB]}\n"
    client = client_with(source, tmp_path, groups)
    with store.transaction() as connection:
        made = notified_store.record("sl-prod", "prod-latency", 31.2, 720)
        made = replace(made, finding=replace(made.finding, where={"environment": "prod"}))
        journal.write_update(
            connection, IncidentUpdate(made, "opened", notifies=True), ("slack",), NOW.timestamp() - 700
        )
    clicks = ("U0ANN", "sl-prod"), ("U0ANN", notified_store.OPEN), ("U0BOB", "sl-prod"), ("U0", "sl-prod")
    for member, incident in clicks:
        assert press(client, pressed(SILENCE, incident, member=member, url=hook.url)) == 200
    messages = [hook.messages.get(timeout=10) for _ in range(3)]
    made_here = [
        each for each in source.incident_actions.silences() if each.author == "ann" and each.comment == "from sl-prod"
    ]

    assert [dict(each.matchers) for each in made_here] == [
        {"service": "checkout", "slo": "prod-latency", "environment": "prod"}
    ]
    assert [row[-1] for row in audited(source)] == ["refused", "refused", "refused", "done"]
    assert {message["response_type"] for message in messages} == {"ephemeral"}
    assert {message["replace_original"] for message in messages} == {False}
    texts = sorted(message["text"] for message in messages)
    assert texts[0] == (
        "Stagelens did not silence this incident: this needs the role responder in all environments; ada can grant it."
        " Your Slack member ID is U0ANN."
    )
    assert [text.rpartition(" ")[2] for text in texts] == ["U0ANN.", "U0.", "U0BOB."]


def test_an_access_file_without_members_of_slack_leaves_its_buttons_open(source: Source, tmp_path: Path) -> None:
    client = client_with(source, tmp_path, "  - {name: shop, role: viewer, users: [bob]}\n")
    press(client, pressed(ACKNOWLEDGE, member="U0ANN"))

    assert audited(source) == [("ann", "slack", "acknowledge", notified_store.OPEN, "checkout", "done")]


def test_a_replayed_webhook_of_pagerduty_does_nothing(source: Source, client: FlaskClient) -> None:
    def acked_by(event_id: str, signatures: str = "") -> str:
        event = {
            "id": event_id,
            "event_type": "incident.acknowledged",
            "agent": {"type": "user_reference", "summary": "Bob"},
            "data": {"incident_key": notified_store.OPEN},
        }
        body = json.dumps({"event": event}).encode()
        mark = signatures + "v1=" + hmac.new(b"h00k", body, hashlib.sha256).hexdigest()
        response = client.post("/hooks/pagerduty", data=body, headers={"X-PagerDuty-Signature": mark})
        assert response.status_code == 200
        return incident_of(source, notified_store.OPEN).acked_by

    first = acked_by("01", "v1=00, ")
    assert audited(source) == [("Bob", "pagerduty", "acknowledge", notified_store.OPEN, "checkout", "done")]
    source.incident_actions.acknowledge(notified_store.OPEN, "ann", undo=True)
    source.clock = (NOW + timedelta(days=30)).timestamp
    replayed = acked_by("01"), acked_by("01", "v1=00, ")

    assert (first, replayed, acked_by("02")) == ("Bob", ("", ""), "Bob")


def test_a_webhook_needs_no_account_and_gives_no_other_access(source: Source) -> None:
    guarded = build(source, DashboardConfig(token="t")).test_client()  # noqa: S106 - of a test
    body = pressed(ACKNOWLEDGE)

    assert press(guarded, body) == 200
    assert guarded.post("/hooks/slack", data=body).status_code == 401
    assert guarded.get("/hooks/slack").status_code == 401
    assert guarded.post("/hooks/other", data=body).status_code == 401
    assert guarded.post("/api/v1/silences", json={"service": "x"}).status_code == 401
