"""Signed URL of a chart: created by the sender and verified by the dashboard."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stagelens.alerts.delivery import chart, outbox
from stagelens.alerts.delivery.channels import pagerduty
from stagelens.alerts.delivery.message import Message
from stagelens.alerts.schema import keys
from stagelens.store import Store
from tests.alerts.stored import about, notify_opening

LINK = "https://lens.example.com/s/magika-demo?p=99"


@pytest.fixture
def linked(message: Message) -> Message:
    return about(message, link=LINK)


def address_of(store: Store, message: Message) -> str:
    with store.transaction() as connection:
        return chart.chart_url(connection, message)


def is_genuine(store: Store, incident: str, signature: str) -> bool:
    with store.engine.connect() as connection:
        return chart.is_chart_signature(connection, incident, signature)


def signature_in(address: str) -> str:
    return address.rpartition("/")[2].removesuffix(".png")


def test_a_chart_url_is_genuine_under_the_key_of_the_database(store: Store, linked: Message) -> None:
    without_key = is_genuine(store, linked.incident, "")
    with store.engine.connect() as connection:
        assert connection.execute(keys.select()).all() == []
    address, other = address_of(store, linked), address_of(store, replace(linked, incident="sl-other"))
    signature = signature_in(address)

    assert not without_key
    assert address == address_of(store, linked) == f"https://lens.example.com/charts/{linked.incident}/{signature}.png"
    assert is_genuine(store, linked.incident, signature)
    assert not is_genuine(store, "sl-other", signature)
    assert is_genuine(store, "sl-other", signature_in(other))
    with store.transaction() as connection:
        connection.execute(keys.delete())
    assert address_of(store, linked) != address


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50, deadline=None)
@given(incident=st.text(st.characters(codec="utf-8")), signature=st.text())
def test_other_chart_urls_are_refused(store: Store, linked: Message, incident: str, signature: str) -> None:
    address_of(store, linked)

    assert not is_genuine(store, incident, signature)


@pytest.mark.parametrize("link", ["", "http://127.0.0.1:8600/s/x", "https://[x/s/x", "lens.example.com"])
def test_a_dashboard_without_https_has_no_chart_url(store: Store, message: Message, link: str) -> None:
    assert address_of(store, about(message, link=link)) == ""


def test_pagerduty_gets_the_chart_url(store: Store, linked: Message) -> None:
    notify_opening(store, linked.incident, linked.finding, "slo:x", ["pagerduty"])
    with store.transaction() as connection:
        claimed = outbox.claim_message(connection, "pagerduty", "me", linked.at, 60.0)
    assert claimed is not None
    event = pagerduty.event_payload(claimed.message, "K" * 32)
    over = replace(claimed.message, transition="resolved", ending="recovered")

    assert [image["src"] for image in event["images"]] == [address_of(store, linked)]
    assert event["images"][0]["href"] == LINK
    assert "burn rate" in event["images"][0]["alt"]
    assert "images" not in pagerduty.event_payload(over, "K" * 32)
    assert "images" not in pagerduty.event_payload(replace(claimed.message, chart=""), "K" * 32)
