"""`stagelens mcp`: Model Context Protocol server, through which assistants ask a dashboard (https://modelcontextprotocol.io).

Over HTTP, it asks with the token of each caller, so that everyone gets what the dashboard shows them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from contextlib import nullcontext

from mcp.server.mcpserver import MCPServer
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types import ToolAnnotations
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from ..client import ApiError, Client, connect
from ..core.addresses import host_and_port, is_loopback, is_same_origin, parse_authority, server_url
from ..core.background_tasks import stop_on_signals
from ..core.errors import StagelensError
from ..core.version import __version__
from .mcp_tools import INSTRUCTIONS, Tools

_TIMEOUT_SECONDS = 60.0
_STOP_CHECK_SECONDS = 0.5
# Calls of tools have a few hundred bytes.
_MAX_BODY_BYTES = 1024 * 1024
_MAX_CONNECTIONS = 300
_PORT_FIX = "Choose another port with --http, or stop the process on that port."
_BEARER = "bearer "
_UNAUTHORIZED = 401


def mcp(parser: argparse.ArgumentParser) -> None:
    parser.description = "Serve assistants over MCP: on stdio, or over HTTP with the token of each caller."
    url = "address of the dashboard (default http://127.0.0.1:8600) [STAGELENS_DASHBOARD_URL]"
    parser.add_argument("--url", help=url)
    http = "serve HTTP at this address, path /mcp"
    parser.add_argument("--http", type=_address, metavar="HOST:PORT", help=http)
    parser.add_argument("--write", action="store_true", help="add tools that acknowledge and silence incidents")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace, _environment: Mapping[str, str]) -> int:
    try:
        client = connect(options.url, timeout=_TIMEOUT_SECONDS)
        if options.http is None:
            server(Tools(lambda _headers: nullcontext(client)), write=options.write).run()
        else:
            _serve(client.url, options.http, write=options.write)
    except ApiError as error:
        raise StagelensError(str(error)) from error
    return 0


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not port.isdigit():
        msg = f"{text!r} is no address; write a host and a port, such as 127.0.0.1:8700"
        raise argparse.ArgumentTypeError(msg)
    return host.strip("[]") or "127.0.0.1", int(port)


def server(tools: Tools, *, write: bool) -> MCPServer:
    mcp_server = MCPServer("stagelens", instructions=INSTRUCTIONS, version=__version__, log_level="WARNING")
    for tool in tools.reading():
        mcp_server.add_tool(tool, annotations=ToolAnnotations(read_only_hint=True), structured_output=False)
    for tool in tools.writing() if write else ():
        mcp_server.add_tool(tool, annotations=ToolAnnotations(read_only_hint=False), structured_output=False)
    return mcp_server


def _serve(url: str, address: tuple[str, int], *, write: bool) -> None:
    host, port = address
    if not is_loopback(host) and not _needs_token(url):
        msg = (
            f"{url} responds without a token, so everyone who reaches {host_and_port(host, port)} could read it.\n"
            "    Set STAGELENS_DASHBOARD_TOKEN of the dashboard, or serve 127.0.0.1."
        )
        raise StagelensError(msg)
    # Not for stdio, which most assistants start.
    from ..collector.server.connection_limits import ConnectionLimits  # noqa: PLC0415
    from ..collector.server.http_server import HttpServer, open_listener  # noqa: PLC0415

    asked = Tools(lambda headers: Client(url, _token(headers or {}), _TIMEOUT_SECONDS))
    # The library compares the beginning of `Origin` and `Host` only.
    unchecked = TransportSecuritySettings(enable_dns_rebinding_protection=False)
    mcp = server(asked, write=write)
    app = mcp.streamable_http_app(stateless_http=True, json_response=True, transport_security=unchecked)
    stopped = stop_on_signals()
    listening = open_listener(host, port, "MCP server", _PORT_FIX)
    print(
        f"stagelens mcp: {server_url(host, listening.getsockname()[1])}/mcp queries {url}", file=sys.stderr, flush=True
    )
    # All callers may come over one proxy.
    limits = ConnectionLimits("MCP server", most=_MAX_CONNECTIONS, most_of_one=_MAX_CONNECTIONS)
    serving = HttpServer(_for_own_pages(app, is_private=is_loopback(host)), limits, max_body_bytes=_MAX_BODY_BYTES)
    serving.begin(listening)
    # With a timeout: another thread may receive the signal, and only this thread can handle it.
    while not stopped.wait(_STOP_CHECK_SECONDS):
        pass
    serving.end()


def _for_own_pages(application: ASGIApp, *, is_private: bool) -> ASGIApp:
    """Return *application* for requests to a name of this server that come from no page of another one.

    The names of a private server are loopback names: a site whose DNS name points to 127.0.0.1 must not read it (DNS rebinding).
    """

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(raw=scope.get("headers", []))
        host, origins = ",".join(headers.getlist("host")), headers.getlist("origin")
        _, name, port = parse_authority(host)
        hosts, schemes = [host], ["http", "https"]
        if is_private:  # without a proxy that ends TLS
            hosts, schemes = (
                [host_and_port(host_name, port or 80) for host_name in (name, "localhost", "127.0.0.1", "::1")],
                ["http"],
            )
        refused = None
        if scope["type"] == "http" and not (is_loopback(name) if is_private else name):
            refused = PlainTextResponse("The Host header of this request does not name this server.\n", 421)
        elif not all(any(is_same_origin(origin, own_host, schemes) for own_host in hosts) for origin in origins):
            refused = PlainTextResponse("This request came from a page of another site.\n", 403)
        await (refused or application)(scope, receive, send)

    return call


def _needs_token(url: str) -> bool:
    with Client(url, None, _TIMEOUT_SECONDS) as anyone:
        try:
            anyone.get("names")
        except ApiError as error:
            if error.status == _UNAUTHORIZED:
                return True
            raise
    return False


def _token(headers: Mapping[str, str]) -> str | None:
    sent = headers.get("authorization", "")
    return sent[len(_BEARER) :].strip() if sent.lower().startswith(_BEARER) else None
