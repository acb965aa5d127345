"""One fact, one number: pages and API of a store with a slow release, a burning objective and a failing service."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from stagelens.alerts.objectives.slo_file import LiveSloFile
from stagelens.alerts.reader import AlertsReader
from stagelens.dashboard.config import DashboardConfig
from stagelens.dashboard.ui.format import percent, times
from stagelens.dashboard.web.app import Dashboard
from stagelens.store import Store
from tests.dashboard.burning_slos import ENV, SLO
from tests.dashboard.served_versions import NOW
from tests.support.raw_requests import NOON, Clock, Request, Site


@pytest.fixture
def client(burning_store: Store, tmp_path: Path) -> FlaskClient:
    path = tmp_path / "slo.yaml"
    path.write_text(SLO, encoding="utf-8")
    alerts = AlertsReader(burning_store, LiveSloFile(path, ENV))
    return Dashboard(DashboardConfig(), burning_store, alerts, clock=NOW.timestamp).server.test_client()


def rows(client: FlaskClient, query: str) -> Iterator[dict[str, object]]:
    found = client.get(f"/api/v1/query/{query}").get_json()
    for row in found["rows"]:
        yield dict(zip([each["name"] for each in found["columns"]], row, strict=True))


def texts(client: FlaskClient) -> dict[str, str]:
    incidents = [f"/incidents/{each['id']}" for each in rows(client, "incidents")]
    pages = ["/", "/slo", "/slo/hot-latency", "/regressions", "/incidents", "/events", "/s/hot", "/s/failing"]
    return {path: plain(client.get(path).text) for path in [*pages, *incidents]}


def plain(html: str) -> str:
    bare = re.sub(r"<(script|style).*?</\1>", "", html, flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", bare)).replace("\u202f", " ")


def test_the_growth_of_a_stage_has_one_number_for_one_basis(client: FlaskClient) -> None:
    found = texts(client)
    (hot,) = (each for each in rows(client, "incidents") if each["service"] == "hot")
    incident = client.get(f"/api/v1/query/incidents?id={hot['id']}").get_json()["incident"]
    amount = f"{incident['stages'][0]['seconds'] * 1e3:.1f} ms"
    own = found[f"/incidents/{hot['id']}"].partition("Timeline")[0]

    said = [
        *re.findall(r"since 11:20 spend ([\d.]+ ms) more in Queue than good ones", found["/"]),
        *(
            each
            for page in ("/incidents", "/events", "/slo")
            for each in re.findall(r"spend \+([\d.]+ ms) [^.]*?queue", found[page])
        ),
        *re.findall(r"spend \+([\d.]+ ms) [^.]*?queue", own),
    ]
    assert len(said) >= 5
    assert set(said) == {amount}
    assert not re.findall(r"[Qq]ueue grew(?! \+[\d.]+ ms at p)", " ".join(found.values()))


def test_a_burn_rate_has_its_window_and_one_number_for_each(client: FlaskClient) -> None:
    found = " ".join(texts(client).values())
    objectives = client.get("/api/v1/query/slo").get_json()["objectives"]
    known = {
        "1 h": {times(each["burn_1h"]) for each in objectives},
        "5 minutes": {times(each["burn_5m"]) for each in objectives},
    }
    said = re.findall(
        "(?:[Bb]urning|burns at|burned(?: at up to)?) ([\\d.]+\u00d7)( in (?:the short window|[\\d.]+ \\w+))?", found
    )

    assert len(said) >= 8
    for rate, window in said:
        assert window, rate
        assert rate in known.get(window.removeprefix(" in "), {rate})


def test_the_change_of_p99_has_one_number_for_one_pair(client: FlaskClient) -> None:
    found = texts(client)
    verdict = client.get("/api/v1/query/compare?service=hot&a=1&b=2").get_json()["verdict"]
    change = percent(verdict["ratio"] - 1).replace("\u202f", " ")

    assert f"p99 rose {change} from 1 to 2" in found["/"]
    assert f"p99 +{change}" in found["/regressions"]
    (fleet,) = (each for each in rows(client, "fleet") if each["service"] == "hot")
    side = found["/"].partition("Services hot ")[2] or found["/"]
    assert f"{float(str(fleet['p99_seconds'])) * 1e3:.1f} ms" in side


def test_a_service_with_few_requests_has_a_number_in_the_side_bar(tmp_path: Path) -> None:
    site = Site(f"sqlite:///{tmp_path / 'few.db'}", {}, Clock(NOON))
    site.write([Request({"forward": 1_000_000 * (place + 10)}, NOON - 60) for place in range(300)])
    client = Dashboard(DashboardConfig(), site.store, None, clock=site.clock).server.test_client()
    page, (fleet,) = client.get("/").text.replace("\u202f", " "), rows(client, "fleet")
    site.close()

    assert fleet["p99_seconds"] is None
    assert f">p50 {float(str(fleet['p50_seconds'])) * 1e3:.0f} ms<" in page
    assert "p99 needs 1,000 requests" in page
