"""Signed URL of a chart: created by the sender and verified by the dashboard."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stagelens.alerts.delivery import chart, outbox
from stagelens.alerts.delivery.channels import pagerduty
from stagelens.alerts.delivery.message import Message
from stagelens.alerts.incidents import journal
from stagelens.alerts.incidents.lifecycle import IncidentRecord
from stagelens.alerts.incidents.notification_rules import IncidentUpdate
from stagelens.alerts.schema import keys
from stagelens.store import Store

LINK = "https://lens.example.com/s/magika-demo?p=99"


@pytest.fixture
def linked(message: Message) -> Message:
    return replace(message, finding=replace(message.finding, link=LINK))


def address_of(store: Store, message: Message) -> str:
    with store.transaction() as connection:
        return chart.chart_url(connection, message)


def is_genuine(store: Store, incident: str, signature: str) -> bool:
    with store.engine.connect() as connection:
        return chart.is_chart_signature(connection, incident, signature)


def signature_in(address: str) -> str:
    return address.rpartition("/")[2].removesuffix(".png")


def test_a_valid_chart_url_is_recognised(store: Store, linked: Message) -> None:
    address, other = address_of(store, linked), address_of(store, replace(linked, incident="sl-other"))
    signature = signature_in(address)

    assert address == address_of(store, linked)
    assert urlsplit(address)[:2] == ("https", "lens.example.com")
    assert urlsplit(address).path == f"/charts/{linked.incident}/{signature}.png"
    assert is_genuine(store, linked.incident, signature)
    assert not is_genuine(store, "sl-other", signature)
    assert is_genuine(store, "sl-other", signature_in(other))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50, deadline=None)
@given(incident=st.text(st.characters(codec="utf-8")), signature=st.text())
def test_other_chart_urls_are_refused(store: Store, linked: Message, incident: str, signature: str) -> None:
    address_of(store, linked)

    assert not is_genuine(store, incident, signature)


def test_without_a_key_no_signature_is_valid(store: Store, linked: Message) -> None:
    assert not is_genuine(store, linked.incident, "")
    with store.engine.connect() as connection:
        assert connection.execute(keys.select()).all() == []


def test_each_database_has_a_separate_key(store: Store, linked: Message) -> None:
    address = address_of(store, linked)
    with store.transaction() as connection:
        connection.execute(keys.delete())

    assert address_of(store, linked) != address


@pytest.mark.parametrize("link", ["", "http://127.0.0.1:8600/s/x", "https://[x/s/x", "lens.example.com"])
def test_a_dashboard_without_https_has_no_chart_url(store: Store, message: Message, link: str) -> None:
    assert address_of(store, replace(message, finding=replace(message.finding, link=link))) == ""


def test_pagerduty_gets_the_chart_url(store: Store, linked: Message) -> None:
    at = linked.at
    incident = IncidentRecord(linked.incident, "slo:x", linked.finding, at, at, at, sequence=1, story=linked.incident)
    with store.transaction() as connection:
        journal.write_update(connection, IncidentUpdate(incident, "opened", notifies=True), ["pagerduty"], at)
        claimed = outbox.claim_message(connection, "pagerduty", "me", at, 60.0)
    assert claimed is not None
    event = pagerduty.event_payload(claimed.message, "K" * 32)
    over = replace(claimed.message, transition="resolved", ending="recovered")

    assert [image["src"] for image in event["images"]] == [address_of(store, linked)]
    assert event["images"][0]["href"] == LINK
    assert "burn rate" in event["images"][0]["alt"]
    assert "images" not in pagerduty.event_payload(over, "K" * 32)
    assert "images" not in pagerduty.event_payload(replace(claimed.message, chart=""), "K" * 32)
