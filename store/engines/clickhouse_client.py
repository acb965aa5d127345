"""Connection to ClickHouse, and its errors with the fix for the operator."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from ...core.errors import StoreError
from .clickhouse_sql import COLUMNS, Array, TableLocation, read_native

try:
    import clickhouse_connect
    from clickhouse_connect.driver.client import Client
    from clickhouse_connect.driver.exceptions import ClickHouseError
except ModuleNotFoundError as missing:
    _MESSAGE = f'points in ClickHouse need its driver, which is not installed ({missing}).\n    pip install "stagelens[clickhouse]"'
    raise StoreError(_MESSAGE) from missing

_URL_FORM = "clickhousedb://user:password@host:8123/database, with ?cluster=NAME for a cluster"
_DATABASE = "stagelens"
_CONNECT_SECONDS, _ANSWER_SECONDS = 10, 60

# Parts of error messages, in lower case, and the fix for each.
_FIXES = (
    ("authentication failed", "the server refuses this user or password; check both in STAGELENS_POINTS"),
    (
        "not enough privileges",
        "this user lacks a right; grant it CREATE, ALTER, INSERT, SELECT and DELETE on the database",
    ),
    ("cluster_doesnt_exist", "the server knows no such cluster; correct ?cluster= or the server's remote_servers"),
    ("without zookeeper", "a replicated table needs Keeper; configure it on the server, or leave ?cluster= away"),
    ("readonly", "the server takes no writes now; look at its disks and at system.replicas"),
    ("read-only", "the server takes no writes now; look at its disks and at system.replicas"),
    ("no space", "the server's disk is full; free some space, nothing else has to be done"),
    ("not_enough_space", "the server's disk is full; free some space, nothing else has to be done"),
    ("memory_limit_exceeded", "the server is out of memory; raise max_memory_usage, or ask for less time"),
    ("too_many_parts", "the server merges slower than it is written to; look at system.merges and at its disks"),
    (
        "chdb engine",
        "another process has this directory open, or this one has another; chDB serves one directory to one process",
    ),
    (
        "connection",
        "the server cannot be reached; check that it runs, its address and its HTTP port (8123, or 8443 with TLS)",
    ),
    ("resolve", "there is no such host; correct STAGELENS_POINTS"),
    ("timed out", "the server did not answer in time; look at system.processes"),
)
# Settings that the server's profile might override.
_SETTINGS = {
    # Lists of series may be long.
    "max_query_size": 1 << 24,
    # An acknowledged insert must be written.
    "async_insert": 0,
    "insert_deduplicate": 1,
    # Late rows and copies of whole stores span many partitions.
    "max_partitions_per_insert_block": 0,
    "max_partition_size_to_drop": 0,
    "lightweight_deletes_sync": 2,
}
_CLUSTER_SETTINGS = {
    # An acknowledged insert must have reached its shard.
    "insert_distributed_sync": 1,
    # Read and write the same replica of each shard while it lives, so that reads see previous writes.
    "load_balancing": "in_order",
}


class ClickHouseServer:
    """A ClickHouse server, cluster or embedded directory. Thread-safe.

    Args:
        client: A client of clickhouse-connect.
        url: Its URL.
        place: Location of the table.
    """

    def __init__(self, client: Client, url: URL, place: TableLocation) -> None:
        self._client = client
        self._url = url
        self.place = place

    @classmethod
    def open(cls, url: URL) -> ClickHouseServer:
        """Connect to the server at *url*.

        Raises:
            StoreError: It cannot be reached, or refuses.
        """
        options = {name: str(value) for name, value in url.query.items() if name not in {"cluster", "ttl"}}
        cluster = url.query.get("cluster")
        place = TableLocation(url.database or _DATABASE, str(cluster) if cluster else None)
        settings = _SETTINGS | (_CLUSTER_SETTINGS if cluster else {})
        with _explain_errors(url, "cannot open"):
            return cls(_client(url, options, settings), url, place)

    def check(self) -> None:
        """Check that the server responds.

        Raises:
            StoreError: It does not.
        """
        self.command("SELECT 1", "cannot reach")

    def command(self, statement: str, doing: str = "cannot change") -> None:
        """Execute a statement without a result."""
        with _explain_errors(self._url, doing):
            self._client.command(statement)

    def rows(self, query: str) -> Sequence[Sequence[Any]]:
        """Return the rows of a result."""
        with _explain_errors(self._url, "cannot read"):
            return self._client.query(query).result_rows

    def table(self, query: str) -> dict[str, Array]:
        """Return the columns of a result of numbers and arrays, see `read_native`."""
        with _explain_errors(self._url, "cannot read"):
            return read_native(self._client.raw_query(query, fmt="Native"))

    def insert(self, block: bytes, token: str) -> None:
        """Insert into the table of points.

        Args:
            block: The rows, from `write_native`.
            token: Deduplication token: a repeated insert with the same token has no effect.
        """
        with _explain_errors(self._url, "cannot write to"):
            self._client.raw_insert(
                self.place.points,
                [name for name, _, _ in COLUMNS],
                block,
                fmt="Native",
                settings={"insert_deduplication_token": token},
            )

    def close(self) -> None:
        """Close all connections."""
        self._client.close()

    def location(self) -> str:
        """Return the name of the server for messages."""
        return _location(self._url)


def parse_url(url: str) -> URL:
    """Return *url*, parsed.

    Raises:
        StoreError: It is not the URL of a ClickHouse database.
    """
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError) as error:
        msg = f"the URL of the points {url!r} cannot be read; write {_URL_FORM}"
        raise StoreError(msg) from error
    if parsed.drivername != "clickhousedb":
        msg = f"the URL of the points is {_location(parsed)!r}; write {_URL_FORM}"
        raise StoreError(msg)
    return parsed


def _location(url: URL) -> str:
    return url.render_as_string(hide_password=True)


def _client(url: URL, options: dict[str, str], settings: dict[str, Any]) -> Client:
    if options.get("interface") == "chdb":
        return clickhouse_connect.get_client(interface="chdb", path=options.get("path"), settings=settings)
    # Without the database, which may not exist yet.
    dsn = url._replace(database=None, query=options).render_as_string(hide_password=False)  # pyright: ignore[reportArgumentType] - None is allowed
    return clickhouse_connect.get_client(
        dsn=dsn,
        settings=settings,
        client_name="stagelens",
        connect_timeout=_CONNECT_SECONDS,
        send_receive_timeout=_ANSWER_SECONDS,
        # Threads query concurrently, which one session does not allow.
        autogenerate_session_id=False,
    )


@contextmanager
def _explain_errors(url: URL, doing: str) -> Generator[None]:
    """Convert errors of the driver to `StoreError` with the place and the fix; *doing* as in "cannot open"."""
    try:
        yield
    except (ClickHouseError, ImportError) as error:
        said = " ".join(str(error).split())
        cure = next((cure for sign, cure in _FIXES if sign in said.lower()), "see what the server said")
        msg = f"{doing} {_location(url)}: {cure} ({said})"
        raise StoreError(msg) from error
