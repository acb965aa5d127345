"""Any request gets a 2xx or 4xx response, and only a 200 changes the store."""

from __future__ import annotations

import random
from collections.abc import Generator

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stagelens.collector import serve
from stagelens.collector.otlp.model import JSON, PROTOBUF
from stagelens.collector.serve import Collector, CollectorConfig
from stagelens.core import names
from stagelens.store import Store
from tests.fuzz.targets import TARGETS


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Generator[tuple[Store, httpx.Client]]:
    store = Store.open(f"sqlite:///{tmp_path_factory.mktemp('garbage')}/stagelens.db")
    with pytest.MonkeyPatch.context() as patch:
        # Only requests change the store: background processing and rollups are disabled.
        patch.setattr(serve, "_AGGREGATION_SECONDS", 3600.0)
        collector = Collector(CollectorConfig(port=0, max_inflated_bytes=100_000), store, maintenance_seconds=3600.0)
    collector.start()
    host, port = collector.address
    with httpx.Client(base_url=f"http://{host}:{port}", timeout=30) as client:
        yield store, client
    collector.stop()
    store.close()


def rows(store: Store) -> list[int]:
    with store.engine.connect() as connection:
        tables = ("points", "traces", "batches", "series", "events")
        return [connection.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar_one() for table in tables]  # noqa: S608 - constants


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    path=st.sampled_from(["/v1/metrics", "/v1/traces", "/v1/events"]),
    body=st.tuples(st.sampled_from(sorted(TARGETS)), st.randoms(use_true_random=False)),
    encoding=st.sampled_from(["identity", "identity", "gzip", "deflate", "br", "x\x7f", ""]),
    media_type=st.sampled_from([JSON, JSON, PROTOBUF, PROTOBUF, "text/html", "application/json;;;", "/"]),
    name=st.none() | st.text(st.characters(max_codepoint=255, exclude_categories=["Cc"]), max_size=300),
)
def test_any_request_gets_a_response_and_only_a_200_changes_the_store(  # noqa: PLR0917 - the parts of a request
    served: tuple[Store, httpx.Client],
    path: str,
    body: tuple[str, random.Random],
    encoding: str,
    media_type: str,
    name: str | None,
) -> None:
    store, client = served
    before = rows(store)
    headers = {"content-type": media_type, "content-encoding": encoding}
    if name is not None:
        headers[names.BATCH_HEADER] = name.strip()
    encoded = [(key.encode(), value.encode("latin-1")) for key, value in headers.items()]
    response = client.post(path, content=TARGETS[body[0]].draw(body[1]), headers=encoded)

    assert response.status_code in (200, 400, 413, 415)
    assert response.status_code == 200 or (response.content and rows(store) == before)
    assert client.get("/healthz").status_code == 200
