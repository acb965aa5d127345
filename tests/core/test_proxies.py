"""Proxies of the environment are those that `requests` uses, which the OpenTelemetry SDK sends with."""

from __future__ import annotations

import itertools

import pytest
import requests.utils

from stagelens.core.proxies import ProxyError, proxy_of, through_proxy

NAMES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
URLS = (
    "http://127.0.0.1:4318/v1/metrics",
    "http://localhost:4318",
    "https://collector.example.com",
    "https://collector.example.com:4318",
    "http://notexample.com",
    "http://10.1.2.3:4318",
    "http://[::1]:4318",
)
NO_PROXY = (
    "",
    "*",
    "localhost, 127.0.0.1",
    ".example.com",
    "example.com",
    "example.com:4318",
    "10.0.0.0/8",
    "10.1.2.3",
    "::1",
)
PROXIES = (
    {},
    {"HTTP_PROXY": "http://a:1"},
    {"https_proxy": "http://b:2", "HTTPS_PROXY": "http://c:3"},
    {"ALL_PROXY": "http://d:4", "HTTP_PROXY": "a.example:1"},
    {"HTTP_PROXY": "http://a:1", "REQUEST_METHOD": "GET"},
)


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in itertools.chain(NAMES, map(str.lower, NAMES), ["REQUEST_METHOD"]):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("proxies", PROXIES, ids=str)
@pytest.mark.parametrize("no_proxy", NO_PROXY)
def test_a_proxy_is_that_of_requests(proxies: dict[str, str], no_proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**proxies, "NO_PROXY": no_proxy}.items():
        monkeypatch.setenv(name, value)

    for url in URLS:
        theirs = requests.utils.select_proxy(url, requests.utils.get_environ_proxies(url))
        assert proxy_of(url) == requests.utils.prepend_scheme_if_needed(theirs, "http") if theirs else not proxy_of(url)


def test_an_address_with_a_port_is_excluded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://a:1")
    monkeypatch.setenv("no_proxy", "10.0.0.1:4318, fd00::/8")

    assert [proxy_of(f"http://{host}") for host in ("10.0.0.1:4318", "10.0.0.1:80", "[fd00::7]")] == [
        "",
        "http://a:1",
        "",
    ]


def test_a_socks_proxy_is_an_error_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5h://ada:s3c/ret@proxy:1080")

    with pytest.raises(ProxyError, match="the proxy socks5h://proxy:1080 is not supported") as failed:
        proxy_of("https://collector.example")
    assert failed.value.fix == "Correct HTTPS_PROXY or ALL_PROXY, or add collector.example to NO_PROXY"
    assert through_proxy("https://collector.example") == ""
