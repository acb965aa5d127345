"""`stagelens mcp`: Model Context Protocol server, through which assistants ask a dashboard (https://modelcontextprotocol.io).

Over stdio, the server asks with the token of its environment. Over HTTP, it asks with the token of each caller, so that everyone gets
what the dashboard shows them; the server has no rights of its own.
"""

from __future__ import annotations

import argparse
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext

import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations

from .. import __version__
from ..client import ApiError, Client, connect
from ..core.addresses import host_and_port, is_loopback, server_url
from ..core.errors import StagelensError
from .mcp_tools import INSTRUCTIONS, Tools

_TIMEOUT_SECONDS = 60.0
_BEARER = "bearer "
_UNAUTHORIZED = 401


def main(words: Sequence[str]) -> int:
    """Run the command with the arguments *words*, and return its exit code."""
    options = _parser().parse_args(words)
    try:
        asked = connect(options.url, timeout=_TIMEOUT_SECONDS)
        if options.http is None:
            server(Tools(lambda _headers: nullcontext(asked)), write=options.write).run()
            return 0
        _serve(asked.url, options.http, write=options.write)
    except ApiError as error:
        raise StagelensError(str(error)) from error
    return 0


def _parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        "stagelens mcp", description="Serve assistants over MCP: on stdio, or over HTTP with the token of each caller."
    )
    made.add_argument(
        "--url", help="address of the dashboard (default http://127.0.0.1:8600) [STAGELENS_DASHBOARD_URL]"
    )
    made.add_argument("--http", type=_address, metavar="HOST:PORT", help="serve HTTP at this address, path /mcp")
    made.add_argument("--write", action="store_true", help="add tools that acknowledge and silence incidents")
    return made


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not port.isdigit():
        msg = f"{text!r} is no address; write a host and a port, such as 127.0.0.1:8700"
        raise argparse.ArgumentTypeError(msg)
    return host.strip("[]") or "127.0.0.1", int(port)


def server(tools: Tools, *, write: bool) -> MCPServer:
    """Return the MCP server of *tools*; *write* adds those that change incidents."""
    made = MCPServer("stagelens", instructions=INSTRUCTIONS, version=__version__, log_level="WARNING")
    for tool in tools.reading():
        made.add_tool(tool, annotations=ToolAnnotations(read_only_hint=True), structured_output=False)
    for tool in tools.writing() if write else ():
        made.add_tool(tool, annotations=ToolAnnotations(read_only_hint=False), structured_output=False)
    return made


def _serve(url: str, address: tuple[str, int], *, write: bool) -> None:
    host, port = address
    if not is_loopback(host) and not _needs_token(url):
        msg = (
            f"{url} responds without a token, so everyone who reaches {host_and_port(host, port)} could read it.\n"
            "    Set STAGELENS_DASHBOARD_TOKEN of the dashboard, or serve 127.0.0.1."
        )
        raise StagelensError(msg)
    asked = Tools(lambda headers: Client(url, _token(headers or {}), _TIMEOUT_SECONDS))
    app = server(asked, write=write).streamable_http_app(stateless_http=True, json_response=True, host=host)
    try:
        listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        msg = f"cannot listen on {host_and_port(host, port)}: {error.strerror}.\n    Choose another port with --http, or stop the process on that port."
        raise StagelensError(msg) from error
    with listening:
        own = server_url(host, listening.getsockname()[1])
        print(f"stagelens mcp: {own}/mcp queries {url}", file=sys.stderr, flush=True)
        uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listening])


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
