"""The MCP server against dashboards, through the client of the MCP SDK."""

from __future__ import annotations

import asyncio
import csv
import re
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.client.client import Client as McpClient
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import TextContent

from stagelens.cli.mcp_server import server
from stagelens.cli.mcp_text import MAX_CHARS, paged
from stagelens.cli.mcp_tools import Tools
from stagelens.client import connect
from stagelens.core.errors import StagelensError
from stagelens.store import Store
from tests.dashboard import slow_replica
from tests.dashboard.burning_slos import SLO
from tests.dashboard.conftest import ROOT
from tests.dashboard.rendering import alerts_of
from tests.dashboard.served_versions import NOW
from tests.dashboard.tabs import Serve
from tests.support import command_line

TOKEN = "a token of this test, long enough"  # noqa: S105


@pytest.fixture(scope="module")
def burning(burning_store: Store, burning_folder: Path, serve: Serve) -> str:
    return serve(burning_store, alerts_of(burning_store, burning_folder, SLO))


class Calls:
    def __init__(self, session: McpClient) -> None:
        self._session = session
        self.number = 0

    async def __call__(self, tool: str, **given: Any) -> str:
        """Return the answer of *tool*."""
        self.number += 1
        result: Any = await self._session.call_tool(tool, given)
        text = "".join(each.text for each in result.content if isinstance(each, TextContent))
        assert not result.is_error, text
        return text

    async def refused(self, tool: str, **given: Any) -> str:
        """Return the error of *tool*."""
        result: Any = await self._session.call_tool(tool, given)
        assert result.is_error
        return "".join(each.text for each in result.content if isinstance(each, TextContent))


def session(
    url: str, use: Callable[[Calls], Awaitable[None]], *, write: bool = False, token: str | None = None
) -> None:
    async def run() -> None:
        with connect(url, token) as asked:
            async with McpClient(server(Tools(lambda _headers: nullcontext(asked)), write=write)) as opened:
                await use(Calls(opened))

    asyncio.run(run())


def table(text: str, first: str) -> list[dict[str, str]]:
    lines = text.splitlines()
    start = next(place for place, line in enumerate(lines) if line.startswith(f"{first},"))
    end = next((place for place in range(start, len(lines)) if not lines[place]), len(lines))
    return list(csv.DictReader(lines[start:end]))


def test_an_assistant_finds_a_slow_function_from_a_cold_start(base: str) -> None:
    async def run() -> None:
        command = StdioServerParameters(command=sys.executable, args=["-m", "stagelens", "mcp", "--url", base])
        async with McpClient(command) as opened:
            ask = Calls(opened)
            slow = table(await ask("list_services"), "service")[0]
            why = await ask("why_slow", service=slow["service"])
            stage = table(why, "stage")[0]["stage"]
            found = table(await ask("slow_requests", service=slow["service"], stage=stage), "trace_id")[0]
            proof = await ask("trace", trace_id=found["trace_id"])

        assert (slow["service"], stage, found["version"]) == ("vision-api", "Preprocess", "2.0.0")
        assert "resize,serve.py:41" in why
        assert "2.0.0 (" in why
        assert "regression at p99" in why
        assert "resize (serve.py:41)" in proof
        assert ask.number <= 6

    asyncio.run(run())


def test_an_assistant_finds_a_slow_replica(tmp_path: Path, serve: Serve) -> None:
    store = slow_replica.store_of(tmp_path, slow_replica.traffic())

    async def use(ask: Calls) -> None:
        slow = table(await ask("list_services"), "service")[0]
        assert f"({slow_replica.SLOW})" in await ask("why_slow", service=slow["service"])
        assert ask.number <= 6

    session(serve(store, clock=slow_replica.NOW.timestamp), use)
    store.close()


def test_the_stages_of_an_answer_add_up(base: str) -> None:
    async def use(ask: Calls) -> None:
        text = await ask("why_slow", service="vision-api", percentile=95)
        head = text.partition(" ms. The stages add up")[0]
        p50, p95 = (float(head.split(f"{name} ")[-1].split(" ")[0]) for name in ("p50", "p95"))
        rows = table(text, "stage")
        assert sum(float(row["p50_ms"]) for row in rows) == pytest.approx(p50, rel=0.002)
        assert sum(float(row["p95_ms"]) for row in rows) == pytest.approx(p95, rel=0.002)

    session(base, use)


def test_every_tool_answers(burning: str) -> None:
    async def use(ask: Calls) -> None:
        service = table(await ask("list_services"), "service")[0]["service"]
        incident = table(await ask("incidents", state="all"), "id")[0]
        one = await ask("incidents", incident_id=incident["id"])
        assert incident["headline"] in one
        assert "opened" in one
        assert table(await ask("slo_status"), "name")[0]["state"] == "burning"
        assert "capacity" in await ask("capacity", service=service)
        assert table(await ask("advice", window="1h"), "service")
        windows = await ask("compare", service=service, a="2026-11-20T11:20/10m", b="2026-11-20T11:40/10m")
        assert "against 2026-11-20T11:20/10m" in windows
        assert "The last data arrived at" in await ask("doctor")

    session(burning, use)


def test_the_documentation_lists_every_tool() -> None:
    text = (ROOT / "docs" / "mcp.md").read_text(encoding="utf-8")
    tools = Tools(lambda _headers: nullcontext(connect()))

    assert re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE) == [tool.__name__ for tool in tools.reading()]
    assert all(f"`{tool.__name__}`" in text for tool in tools.writing())


@pytest.mark.parametrize(
    ("tool", "given", "helps"),
    [
        ("why_slow", {"service": "vision"}, "Call list_services"),
        ("why_slow", {"service": "vision-api", "window": "soon"}, "such as 15m, 6h or 7d"),
        ("why_slow", {"service": "vision-api", "window": "yesterday/1h"}, "2026-11-21T12:00/6h"),
        ("compare", {"service": "chat-llm"}, "set a and b"),
        ("trace", {"trace_id": "0af7"}, "slow_requests"),
        ("trace", {"trace_id": "../../names"}, "slow_requests"),
        ("incidents", {"incident_id": "inc-9"}, "incidents(state='all')"),
        ("incidents", {"state": "closed"}, "open, resolved, all"),
        ("advice", {"rank": "p75"}, "p99, p50, ttft, tpot, cost"),
        ("list_services", {"page": 9}, "page=1"),
    ],
)
def test_an_error_names_the_next_call(base: str, tool: str, given: dict[str, Any], helps: str) -> None:
    async def use(ask: Calls) -> None:
        assert helps in await ask.refused(tool, **given)

    session(base, use)


def test_a_dashboard_that_does_not_answer_is_named() -> None:
    async def use(ask: Calls) -> None:
        assert "stagelens up" in await ask.refused("list_services")

    session("http://127.0.0.1:9", use)


@pytest.mark.usefixtures("burning_store")
def test_tools_change_incidents_only_with_the_flag(
    burning_folder: Path, open_store: Callable[..., Store], tmp_path: Path, serve: Serve
) -> None:
    with (
        closing(sqlite3.connect(tmp_path / "own.db")) as copy,
        closing(sqlite3.connect(burning_folder / "burning.db")) as of,
    ):
        of.backup(copy)
    store = open_store("own.db", clock=NOW.timestamp)

    async def reading(ask: Calls) -> None:
        assert "Unknown tool" in await ask.refused("acknowledge", incident_id="any")

    async def writing(ask: Calls) -> None:
        incident = table(await ask("incidents"), "id")[0]
        await ask("acknowledge", incident_id=incident["id"])
        assert "acknowledged" in await ask("incidents", incident_id=incident["id"])
        silenced = await ask("silence", service=incident["service"], duration="1h", comment="known")
        assert f"mutes {incident['service']} for 1h" in silenced

    async def without_token(ask: Calls) -> None:
        assert "only with a token" in await ask.refused("silence", service="hot", duration="1h", comment="x")

    url = serve(store, alerts_of(store, tmp_path, SLO), token=TOKEN)
    session(url, reading, token=TOKEN)
    session(url, writing, token=TOKEN, write=True)
    session(serve(store), without_token, write=True)


@contextmanager
def serving_http(url: str, host: str = "127.0.0.1") -> Generator[str]:
    command = [sys.executable, "-m", "stagelens", "mcp", "--url", url, "--http", f"{host}:0"]
    limited = ["sh", "-c", 'ulimit -n 1024 && exec "$@"', "sh", *command]
    with subprocess.Popen(limited, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        yield running.stderr.readline().split()[2]
        running.terminate()
        assert (running.stderr.read(), running.wait(timeout=60)) == ("", 0)


@pytest.fixture
def over_http(filled: Store, serve: Serve) -> Iterator[str]:
    with serving_http(serve(filled, token=TOKEN)) as served:
        yield served


LIST_TOOLS = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}


def status_over_http(url: str, body: object = LIST_TOOLS, **headers: str) -> int:
    accepted = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
    return httpx2.post(url, json=body, headers=accepted | headers, timeout=60).status_code


def test_unfinished_bodies_do_not_block_assistants(over_http: str) -> None:
    where = httpx2.URL(over_http)
    head = b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 900000\r\n\r\n{"
    with ExitStack() as unfinished:
        for _ in range(1200):
            connection = unfinished.enter_context(socket.create_connection((where.host, where.port or 80), timeout=60))
            with suppress(OSError):
                connection.sendall(head)
        statuses = {status_over_http(over_http) for _ in range(10)}

    assert statuses == {200}
    assert status_over_http(over_http, {**LIST_TOOLS, "params": {"_meta": {"x": "x" * 1024**2}}}) == 413


@pytest.mark.parametrize(
    ("host", "own"), [("127.0.0.1", ["127.0.0.1", "localhost", "LOCALHOST", "[::1]"]), ("0.0.0.0", ["lens.example"])]
)
def test_only_own_pages_may_call(filled: Store, serve: Serve, host: str, own: list[str]) -> None:
    with serving_http(serve(filled, token=TOKEN), host) as url:
        port = httpx2.URL(url).port
        foreign = ["http://127.0.0.1:9", "http://127.0.0.1", "null", "http://localhost:1@evil.example"]
        foreign += [f"http://{own[0]}:{port}/", f"http://{own[0]}:{port}.evil.example", f"ftp://{own[0]}:{port}"]
        foreign += [f"http://{own[0]}.evil.example:{port}"]
        hosts = {each: status_over_http(url, Host=f"{each}:{port}") for each in own}
        origins = {each: status_over_http(url, Host=f"{own[0]}:{port}", Origin=f"http://{each}:{port}") for each in own}
        refused = {each: status_over_http(url, Host=f"{own[0]}:{port}", Origin=each) for each in foreign}
        others = {
            each: status_over_http(url, Host=each) for each in (f"{own[0]}:{port}.evil.example", "evil@localhost")
        }

    assert hosts == origins == dict.fromkeys(own, 200)
    assert refused == dict.fromkeys(foreign, 403)
    assert others == dict.fromkeys(others, 421)


def test_over_http_the_token_of_the_caller_counts(over_http: str) -> None:
    async def call(headers: Mapping[str, str]) -> tuple[bool, str]:
        async with (
            httpx2.AsyncClient(headers=headers) as http,
            McpClient(streamable_http_client(over_http, http_client=http)) as opened,
        ):
            result: Any = await opened.call_tool("list_services", {})
            return result.is_error, result.content[0].text

    async def use() -> None:
        assert (await call({"Authorization": f"Bearer {TOKEN}"}))[0] is False
        for headers in ({"Authorization": "Bearer wrong"}, {}):
            failed, text = await call(headers)
            assert failed
            assert "did not accept the token" in text

    asyncio.run(use())


def test_an_open_dashboard_is_not_served_to_the_network(base: str) -> None:
    with pytest.raises(StagelensError, match="responds without a token"):
        command_line.run("mcp", "--url", base, "--http", "0.0.0.0:0")


def test_an_address_without_a_port_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command_line.run("mcp", "--http", "localhost")
    assert "such as 127.0.0.1:8700" in capsys.readouterr().err


@given(lines=st.lists(st.text("ab,", max_size=MAX_CHARS // 3), min_size=1, max_size=40))
def test_pages_have_every_row_once_and_fit(lines: list[str]) -> None:
    shown: list[str] = []
    page = 1
    while True:
        found = paged("head", ["names", *lines], page).split("\n")
        more = found[-1].startswith("Page ")
        assert found[:2] == ["head", "names"]
        assert sum(len(line) + 1 for line in found) < MAX_CHARS + 200
        shown += found[2:-1] if more else found[2:]
        if not more:
            break
        page += 1
    assert shown == lines
    with pytest.raises(ToolError, match=f"page={page}"):
        paged("head", ["names", *lines], page + 1)
