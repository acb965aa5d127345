"""HTTP transport with egress checks: it connects to the checked address, and TLS verifies the host name."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Generator
from typing import Any

import httpx
import pytest

from stagelens.core.egress import ENV, CheckedTransport, EgressDeniedError, EgressPolicy
from stagelens.core.proxies import proxy_of
from tests.support import scrape_target


def get(
    url: str, egress_policy: EgressPolicy | None = None, *, proxy: str | None = None, follow: bool = False
) -> httpx.Response:
    async def ask() -> httpx.Response:
        transport = CheckedTransport(egress_policy or EgressPolicy(), proxy=proxy)
        async with httpx.AsyncClient(transport=transport, follow_redirects=follow) as client:
            return await client.get(url)

    return asyncio.run(ask())


@pytest.fixture
def served() -> Generator[scrape_target.Served]:
    with scrape_target.serving() as served:
        served.bodies["/metrics"] = b"here"
        yield served


@pytest.fixture
def leads(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Simulated name lookup: host names with the addresses of the first lookup, then of the next ones."""

    def set_(*addresses: list[str]) -> None:
        left, real = list(addresses), socket.getaddrinfo

        def look_up(host: str, port: int, *arguments: Any, **options: Any) -> list[Any]:
            if not host.endswith((".example", ".internal")):
                return real(host, port, *arguments, **options)
            found = left.pop(0) if len(left) > 1 else left[0]
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in found]

        monkeypatch.setattr(socket, "getaddrinfo", look_up)

    return set_


def test_the_host_header_is_unchanged(served: scrape_target.Served, leads: Callable[..., None]) -> None:
    leads(["127.0.0.1"])

    assert get(f"http://llm.example:{served.port}/metrics").text == "here"
    assert served.asked[0]["host"] == f"llm.example:{served.port}"


def test_the_next_address_is_tried(served: scrape_target.Served, leads: Callable[..., None]) -> None:
    leads(["127.0.0.2", "127.0.0.1"])

    assert get(f"http://llm.example:{served.port}/metrics").text == "here"


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest/meta-data/",
        "http://[::ffff:169.254.169.254]/",
        "http://[fd00:ec2::254]/",
        "http://2852039166/",
        "http://0xA9FEA9FE/",
        "http://0251.0376.0251.0376/",
        "http://169.254.43518/",
        "http://metadata.google.internal/",
    ],
)
def test_no_notation_of_a_metadata_address_is_called(url: str, leads: Callable[..., None]) -> None:
    leads(["169.254.169.254"])
    # The httpx client does not change leading zeros.
    with pytest.raises(
        (EgressDeniedError, httpx.InvalidURL), match=r"STAGELENS_MAY_CALL lists allowed addresses|Invalid IPv4 address"
    ):
        get(url)


def test_dns_rebinding_is_prevented_by_one_lookup(served: scrape_target.Served, leads: Callable[..., None]) -> None:
    leads(["127.0.0.1"], ["169.254.169.254"])
    url = f"http://rebound.example:{served.port}/metrics"

    assert get(url).text == "here"
    with pytest.raises(EgressDeniedError):
        get(url)


def test_redirects_that_are_followed_are_checked(served: scrape_target.Served) -> None:
    served.status, served.headers = 302, {"Location": "http://169.254.169.254/"}

    with pytest.raises(EgressDeniedError):
        get(served.url, follow=True)


@pytest.mark.parametrize("host", [f"{'a' * 64}.example", "no.such.host.invalid"])
def test_an_unknown_host_name_raises_the_httpx_error(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.getaddrinfo

    def no_names(host: str, *arguments: Any, **options: Any) -> Any:
        # The lookup would use the network and may take longer than the timeout of httpx.
        if host.endswith(".invalid"):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return real(host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", no_names)
    with pytest.raises(httpx.ConnectError):
        get(f"http://{host}/")


def test_a_proxied_host_is_checked(served: scrape_target.Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", served.url.removesuffix("/metrics"))
    monkeypatch.setenv("no_proxy", "inside.example")
    served.bodies["http://far.example/x"] = b"from far"
    proxy = proxy_of("http://far.example/x")

    assert proxy_of("http://inside.example/x") == ""
    assert get("http://far.example/x", proxy=proxy).text == "from far"
    with pytest.raises(EgressDeniedError):
        get("http://169.254.169.254/", proxy=proxy)
    listed = EgressPolicy.from_env({ENV: "private, hooks.slack.com"})
    with pytest.raises(EgressDeniedError, match=r"far.example is not in STAGELENS_MAY_CALL"):
        get("http://far.example/x", listed, proxy=proxy)
