"""Points in ClickHouse: in chDB, over HTTP, and on the server in STAGELENS_TEST_CLICKHOUSE_DSN if it is set."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, func, make_url, select

from stagelens.core.columns import Buckets
from stagelens.core.errors import StoreError
from stagelens.core.histogram import Histogram
from stagelens.core.names import METRICS, REQUEST_DURATION
from stagelens.store import Batch, Point, Retention, schema
from stagelens.store.bucket_blobs import encode_buckets
from stagelens.store.engines import clickhouse_sql, database
from stagelens.store.engines.clickhouse import ORPHANED_SECONDS, ClickHousePoints, ClickHouseServer, parse_url
from stagelens.store.engines.clickhouse_sql import select_query
from stagelens.store.points import PointRow
from stagelens.store.schema import Segment, take_part
from stagelens.store.storage import Columns, PointQuery, Points, PreparedWrite, Steps, join_columns, sum_points
from tests.store.clickhouse_server import clickhouse_server, embedded_url, new_database
from tests.support.raw_requests import NOON, Request, Series, Site

pytestmark = pytest.mark.stacks

DSN = os.environ.get("STAGELENS_TEST_CLICKHOUSE_DSN")
Urls = Callable[[], str]


@pytest.fixture(scope="session")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.getbasetemp() / "clickhouse"


@pytest.fixture(scope="session", params=["chdb", "http", "dsn"])
def new_url(request: pytest.FixtureRequest, directory: Path) -> Generator[Urls]:
    if request.param == "chdb":
        yield lambda: embedded_url(directory)
    elif request.param == "http":
        with clickhouse_server() as form:
            yield lambda: form.format(new_database()) + "&ttl=off"
    elif DSN is None:
        pytest.skip("STAGELENS_TEST_CLICKHOUSE_DSN names no server")
    else:
        yield from _on_server(DSN)


def _on_server(dsn: str) -> Generator[Urls]:
    made: list[str] = []

    def new() -> str:
        url = make_url(dsn).set(database=f"{new_database()}_{os.getpid()}").update_query_dict({"ttl": "off"})
        made.append(url.render_as_string(hide_password=False))
        return made[-1]

    yield new
    for url in made:
        server = ClickHouseServer.open(parse_url(url))
        server.command(
            f"DROP DATABASE IF EXISTS {clickhouse_sql.quote_name(server.place.database)}{server.place.everywhere} SYNC"
        )
        server.close()


@pytest.fixture(scope="session")
def chdb_url(directory: Path) -> Urls:
    """Function that returns URLs of new chDB databases, for tests that do not depend on the transport."""
    return lambda: embedded_url(directory)


@pytest.fixture
def site(new_url: Urls, tmp_path: Path) -> Generator[Site]:
    one = Site(f"sqlite:///{tmp_path}/stagelens.db", {"points_url": new_url()})
    yield one
    one.store.close()


@dataclass
class Twins:
    clickhouse: Site
    sqlite: Site

    def __iter__(self) -> Generator[Site]:
        yield self.clickhouse
        yield self.sqlite


@pytest.fixture(scope="module")
def twins(new_url: Urls, tmp_path_factory: pytest.TempPathFactory) -> Generator[Twins]:
    path = tmp_path_factory.mktemp("twins")
    made = Twins(
        Site(f"sqlite:///{path}/clickhouse.db", {"points_url": new_url()}), Site(f"sqlite:///{path}/sqlite.db", {})
    )
    yield made
    for one in made:
        one.store.close()


HISTOGRAMS = st.builds(
    lambda scale, buckets, zero: Histogram(scale, buckets, zero, 0.25 * sum(buckets.values())),
    st.integers(-2, 5),
    st.dictionaries(st.integers(-900, 300), st.integers(1, 2**40), max_size=8),
    st.integers(0, 3),
)
POINTS = st.lists(
    st.builds(
        lambda route, metric, stage, at, histogram: (
            route,
            Point(Series("", ""), metric, stage, NOON - 10 * at, histogram),
        ),
        st.sampled_from(["/a", "/b", "/c"]),
        st.sampled_from(sorted(METRICS)),
        st.sampled_from(["queue", "infer'ence", "décodage"]),
        st.integers(1, 60),
        HISTOGRAMS,
    ),
    min_size=1,
    max_size=12,
)
_services = iter(range(1_000_000))


def query_result(site: Site, question: PointQuery, steps: Steps | None) -> dict[tuple[int, int, int, str, int], object]:
    segment = Segment(10, NOON - 900, NOON)
    with database.reading(site.store.engine) as connection:
        pieces = list(site.store.points.read(connection, question, [segment], steps))
    summed = sum_points(join_columns(pieces), steps, apart=question.by is not None)
    starts = steps.of(summed.times) if steps else np.zeros(len(summed), np.int64)
    return {
        (int(start), int(series), int(metric), summed.stages[stage], int(scale)): point
        for start, series, metric, stage, scale, point in zip(
            starts, summed.series, summed.metric, summed.stage, summed.scale, _points(summed), strict=True
        )
    }


def _points(columns: Columns) -> Sequence[object]:
    pairs = list(zip(columns.buckets.index.tolist(), columns.buckets.amount.tolist(), strict=True))
    parts = [pairs[low:high] for low, high in pairwise(columns.buckets.offsets.tolist())]
    return list(zip(columns.times.tolist(), columns.zero.tolist(), columns.sum.tolist(), parts, strict=True))


@settings(max_examples=6, deadline=None)
@given(
    batches=st.lists(POINTS, min_size=1, max_size=3),
    by=st.sampled_from(["series", "total", None]),
    width=st.sampled_from([None, 10, 70, 300]),
    route=st.sampled_from([None, "/a"]),
    counts_only=st.booleans(),
)
def test_sums_on_the_server_equal_numpy(  # noqa: PLR0917 - generated
    twins: Twins,
    batches: list[list[tuple[str, Point]]],
    by: Literal["series", "total"] | None,
    width: int | None,
    route: str | None,
    counts_only: bool,
) -> None:
    service = f"service-{next(_services)}"
    for place, points in enumerate(batches):
        named = [
            Point(Series(service, "1", route=of), point.metric, point.stage, point.at, point.histogram)
            for of, point in points
        ]
        for one in twins:
            one.store.write([Batch(f"{service}-{place}", named)])
    options = {} if route is None else {"route": route}
    selection = twins.sqlite.around(service=service, **options)
    question = PointQuery(selection, sorted(METRICS), by, counts_only=counts_only)
    steps = None if width is None else Steps(NOON - 900, width)

    assert query_result(twins.clickhouse, question, steps) == query_result(twins.sqlite, question, steps)


@settings(max_examples=6, deadline=None)
@given(points=POINTS)
def test_rows_round_trip_unchanged(twins: Twins, points: list[tuple[str, Point]]) -> None:
    service = f"service-{next(_services)}"
    named = [
        Point(Series(service, "1", route=of), point.metric, point.stage, point.at, point.histogram)
        for of, point in points
    ]
    question = PointQuery(twins.sqlite.around(service=service), sorted(METRICS))
    segment = Segment(10, NOON - 900, NOON)
    found: list[object] = []
    for one in twins:
        one.store.write([Batch(service, named)])
        with database.reading(one.store.engine) as connection:
            points_of = one.store.points
            seen = sorted(points_of.seen(connection, question, [segment]), key=lambda row: row.series_id)
            rows = sorted(points_of.load(connection, 10, NOON - 900, NOON).rows(10, 0))
            first = points_of.first_bucket(connection, 10, NOON - 300), points_of.first_bucket(connection, 60, 0)
            found.append((seen, rows, first, points_of.number(connection, question, [segment])))

    assert found[0] == found[1]


def row(bucket: int = NOON - 600, part: int = 1, tier: int = 10) -> PointRow:
    blob = encode_buckets(Buckets(np.array([0, 1]), np.array([-7]), np.array([1])))[0]
    return PointRow(tier, 1, 1, bucket, 1, "queue", part, 5, 0, 1, 0.5, blob)


def writing(
    *buckets: int, then: Callable[[Connection], None] = lambda _: None
) -> Callable[[Connection], PreparedWrite]:
    def prepare(connection: Connection) -> PreparedWrite:
        part = take_part(connection)
        return PreparedWrite(part, [row(bucket, part) for bucket in buckets], then)

    return prepare


def stored(site: Site, tier: int = 10) -> int:
    with database.reading(site.store.engine) as connection:
        return len(site.store.points.load(connection, tier, 0, NOON + 3600))


def server_of(points: Points) -> ClickHouseServer:
    assert isinstance(points, ClickHousePoints)
    return points.server


def held(points: Points) -> int:
    server = server_of(points)
    return server.rows(select_query("count()", server.place.points))[0][0]


def fail(_: Connection) -> None:
    raise KeyboardInterrupt


def test_an_incomplete_write_is_never_visible_and_is_deleted(site: Site) -> None:
    points, engine = site.store.points, site.store.engine
    points.apply(engine, writing(NOON - 600))
    with pytest.raises(KeyboardInterrupt):
        points.apply(engine, writing(NOON - 500, then=fail))
    before = stored(site), held(points)
    points.apply(engine, writing(NOON - 400))
    retried = stored(site), held(points)
    with database.writing(engine, "cannot tidy") as connection:
        points.tidy(connection, int(site.clock()) + 10**9)
    with database.reading(engine) as connection:
        left = connection.scalar(select(func.count()).select_from(schema.intents))

    assert (before, retried, (stored(site), held(points)), left) == ((1, 2), (2, 3), (2, 2), 0)


def test_a_recent_intent_is_not_deleted(site: Site) -> None:
    points, engine = site.store.points, site.store.engine
    points_clock = ClickHousePoints(server_of(points), lambda: NOON)
    with pytest.raises(KeyboardInterrupt):
        points_clock.apply(engine, writing(NOON - 500, then=fail))
    with database.writing(engine, "cannot tidy") as connection:
        points.tidy(connection, NOON + ORPHANED_SECONDS)

    assert held(points) == 1


def test_a_write_with_a_deleted_intent_fails(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    points, engine = site.store.points, site.store.engine
    insert = ClickHouseServer.insert

    def slow(server: ClickHouseServer, block: bytes, token: str) -> None:
        insert(server, block, token)
        with database.writing(engine, "cannot tidy") as connection:
            points.tidy(connection, int(site.clock()) + 10**9)

    with monkeypatch.context() as patched:
        patched.setattr(ClickHouseServer, "insert", slow)
        with pytest.raises(StoreError, match="took longer than 600 s and was cancelled; it can be repeated"):
            points.apply(engine, writing(NOON - 500, then=fail))
    points.apply(engine, writing(NOON - 500))

    assert (stored(site), held(points)) == (1, 1)


def test_a_repeated_insert_counts_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    insert = ClickHouseServer.insert

    def twice(server: ClickHouseServer, block: bytes, token: str) -> None:
        insert(server, block, token)
        insert(server, block, token)

    monkeypatch.setattr(ClickHouseServer, "insert", twice)
    site.store.points.apply(site.store.engine, writing(NOON - 500, NOON - 86_400 * 3))

    assert held(site.store.points) == 2


def test_a_fully_expired_partition_is_dropped(site: Site) -> None:
    points, engine = site.store.points, site.store.engine
    width = points.freed_seconds(10)
    old, young = NOON - 3 * width, NOON - width

    def prepare(connection: Connection) -> PreparedWrite:
        part = take_part(connection)
        rows = [row(old, part), row(young, part), row(old, part, 60)]
        return PreparedWrite(part, sorted(rows), lambda _: None)

    points.apply(engine, prepare)
    with database.writing(engine, "cannot cut") as connection:
        before = points.used_bytes(connection)
        points.cut(connection, 10, old - old % width + width - 1)
        remaining = stored(site)
        points.cut(connection, 10, old - old % width + width)
        after = points.used_bytes(connection)

    assert (remaining, stored(site), stored(site, 60)) == (2, 1, 1)
    assert 0 < after < before


def test_a_service_is_deleted_with_all_its_rows(site: Site) -> None:
    for name in ("shop", "bench"):
        histogram = Histogram()
        histogram.record(0.1)
        site.store.write([Batch(name, [Point(Series(name, "1"), REQUEST_DURATION, "queue", NOON - 7200, histogram)])])
    site.store.maintain()
    before = {tier: stored(site, tier) for tier in schema.TIERS}
    site.store.forget(["bench"])
    with site.store.engine.connect() as connection:
        rows = select(schema.ledger.c.tier, func.sum(schema.ledger.c.rows)).group_by("tier")
        counted = {tier: int(number) for tier, number in connection.execute(rows) if number}

    assert site.store.services() == ["shop"]
    assert {tier: stored(site, tier) for tier in schema.TIERS} == {tier: number // 2 for tier, number in before.items()}
    assert counted == {tier: number // 2 for tier, number in before.items() if number}


def test_every_replica_has_every_row(new_url: Urls, tmp_path: Path) -> None:
    url = make_url(new_url())
    if "cluster" not in url.query:
        pytest.skip("this ClickHouse is no cluster")
    site = Site(f"sqlite:///{tmp_path}/stagelens.db", {"points_url": url.render_as_string(hide_password=False)})
    site.store.points.apply(site.store.engine, writing(*range(NOON - 600, NOON, 10)))
    server = ClickHouseServer.open(parse_url(url.render_as_string(hide_password=False)))
    server.command(f"SYSTEM SYNC REPLICA {server.place.local}{server.place.everywhere}")
    cluster = f"{clickhouse_sql.quote_text(str(url.query['cluster']))}, {clickhouse_sql.quote_text(server.place.database)}, points_local"
    named = f"cluster = {clickhouse_sql.quote_text(str(url.query['cluster']))}"
    replicas = server.rows(select_query("uniqExact(replica_num)", "system.clusters", named))[0][0]

    assert stored(site) == 60
    assert server.rows(select_query("count()", f"clusterAllReplicas({cluster})"))[0][0] == 60 * replicas


RETENTION = Retention(seconds_10=timedelta(hours=1), minutes=timedelta(hours=2), hours=timedelta(hours=3))


def engine_of(server: ClickHouseServer) -> str:
    return server.rows(select_query("engine_full", "system.tables", f"database = '{server.place.database}'"))[0][0]


def test_the_time_to_live_follows_the_settings(chdb_url: Urls) -> None:
    url = chdb_url()
    server = ClickHouseServer.open(parse_url(url))
    seen: list[bool] = []
    for asked, retention in (
        (url.replace("&ttl=off", ""), Retention()),
        (url.replace("&ttl=off", ""), RETENTION),
        (url, RETENTION),
    ):
        ClickHousePoints.open(asked, retention).close()
        seen += [clickhouse_sql.time_to_live(one) in engine_of(server) for one in (Retention(), RETENTION)]
    server.close()

    assert seen == [True, False, False, True, False, False]


def test_expired_rows_are_removed_automatically(chdb_url: Urls, tmp_path: Path) -> None:
    site = Site(
        f"sqlite:///{tmp_path}/x.db", {"points_url": chdb_url().replace("&ttl=off", ""), "retention": RETENTION}
    )
    points = site.store.points
    server = server_of(points)
    now = server.rows("SELECT toUnixTimestamp(now())")[0][0]
    long_ago = now - now % 10 - 610_000

    def prepare(connection: Connection) -> PreparedWrite:
        part = take_part(connection)
        rows = [row(long_ago, part), row(long_ago, part, 60), row(now - now % 10, part)]
        return PreparedWrite(part, sorted(rows), lambda _: None)

    points.apply(site.store.engine, prepare)
    server.command(f"OPTIMIZE TABLE {server.place.local} FINAL")
    left = server.rows(select_query("tier, bucket", server.place.points, then="ORDER BY tier"))
    site.store.close()

    assert [tuple(one) for one in left] == [(10, now - now % 10), (60, long_ago)]


def test_a_cluster_has_replicated_and_distributed_tables() -> None:
    place = clickhouse_sql.TableLocation("stage lens", "prod")
    made, local, over = clickhouse_sql.create_statements(place, clickhouse_sql.time_to_live(Retention()))

    assert made == "CREATE DATABASE IF NOT EXISTS `stage lens` ON CLUSTER `prod`"
    assert local.startswith("CREATE TABLE IF NOT EXISTS `stage lens`.points_local ON CLUSTER `prod` (tier UInt16 ")
    assert " ENGINE = ReplicatedMergeTree PARTITION BY (tier, " in local
    assert over == (
        "CREATE TABLE IF NOT EXISTS `stage lens`.points ON CLUSTER `prod` AS `stage lens`.points_local "
        "ENGINE = Distributed('prod', 'stage lens', points_local, cityHash64(series_id))"
    )
    assert place.parts == "clusterAllReplicas('prod', system.parts)"
    assert (
        clickhouse_sql.ttl_statement(place, None)
        == "ALTER TABLE `stage lens`.points_local ON CLUSTER `prod` REMOVE TTL"
    )


def test_an_unknown_cluster_is_an_error(chdb_url: Urls) -> None:
    with pytest.raises(
        StoreError, match=r"cannot make the tables of .*: the server has no such cluster; correct \?cluster="
    ):
        ClickHousePoints.open(f"{chdb_url()}&cluster=nowhere", Retention())


def test_the_table_of_a_newer_version_is_refused(chdb_url: Urls) -> None:
    url = chdb_url()
    ClickHousePoints.open(url, Retention()).close()
    server = ClickHouseServer.open(parse_url(url))
    server.command(f"ALTER TABLE {server.place.points} MODIFY COMMENT 'stagelens points 2'")
    server.close()

    with pytest.raises(StoreError, match=r"is not of this version .*upgrade Stagelens, or use another database"):
        ClickHousePoints.open(url, Retention())


def test_the_table_of_another_database_is_refused(chdb_url: Urls, tmp_path: Path) -> None:
    options = {"points_url": chdb_url()}
    for name in ("first", "second"):
        site = Site(f"sqlite:///{tmp_path}/{name}.db", options)
        if name == "first":
            site.write([Request({"infer": 10**6})])
        else:
            with pytest.raises(StoreError, match=r"it belongs to another database.*points all with part >= 1"):
                site.write([Request({"infer": 10**6})])
        site.store.close()


def test_an_unavailable_server_is_an_error(tmp_path: Path) -> None:
    url = "clickhousedb://me:secret@127.0.0.1:9/stagelens"
    with pytest.raises(StoreError) as raised:
        Site(f"sqlite:///{tmp_path}/x.db", {"points_url": url})

    message = str(raised.value)
    assert message.startswith(
        "cannot open clickhousedb://me:***@127.0.0.1:9/stagelens: the server cannot be reached; check"
    )


@pytest.mark.parametrize("url", ["postgresql://host/database", "no url"])
def test_an_invalid_url_is_refused(url: str) -> None:
    with pytest.raises(StoreError, match="write clickhousedb://user:password@host:8123/database"):
        ClickHousePoints.open(url, Retention())


def test_the_embedded_engine_is_loaded_on_demand(directory: Path) -> None:
    code = "import sys, stagelens.store.engines.clickhouse; sys.exit('chdb' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=directory.parent).returncode == 0


def test_a_missing_driver_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delitem(sys.modules, "stagelens.store.engines.clickhouse", raising=False)
    monkeypatch.setitem(sys.modules, "clickhouse_connect", None)
    with pytest.raises(StoreError, match=r'not installed .*\n    pip install "stagelens\[clickhouse\]"'):
        Site(f"sqlite:///{tmp_path}/x.db", {"points_url": "clickhousedb://127.0.0.1:9/x"})
