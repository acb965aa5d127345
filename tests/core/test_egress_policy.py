"""Egress policy: permitted addresses by kind, network and name, in any notation."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagelens.core.egress import ENV, EgressDeniedError, EgressPolicy, kind_of
from stagelens.core.errors import ConfigError

EVERYWHERE = EgressPolicy.from_env({ENV: "public, private, loopback, metadata"})
LINK_LOCAL = st.ip_addresses(network="169.254.0.0/16")


def written(address: ipaddress.IPv4Address) -> list[str]:
    number = int(address)
    high, low = number >> 16, number & 0xFFFF
    return [
        str(address),
        f"::ffff:{address}",
        f"::ffff:{high:x}:{low:x}",
        f"64:ff9b::{address}",
        f"64:ff9b:1::{address}",
        f"::ffff:0:{high:x}:{low:x}",
        f"::{high:x}:{low:x}",
        f"2002:{high:x}:{low:x}::1",
        str(ipaddress.IPv6Address(0x20010000 << 96 | 0xC0000201 << 64 | number ^ 0xFFFFFFFF)),
    ]


@given(LINK_LOCAL)
def test_every_notation_of_a_metadata_address_is_refused(address: ipaddress.IPv4Address) -> None:
    for text in written(address):
        assert EgressPolicy().denial_reason(text), text
        assert EgressPolicy().denial_reason("llm", text), text
        assert not EVERYWHERE.denial_reason(text), text


@given(st.ip_addresses())
def test_exactly_the_permitted_kinds_are_allowed(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    kinds = [
        kind
        for kind in ("public", "private", "loopback", "metadata")
        if not EgressPolicy(frozenset({kind})).denial_reason(str(address))
    ]

    assert len(kinds) == 1


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("8.8.8.8", "public"),
        ("2001:4860:4860::8888", "public"),
        ("10.1.2.3", "private"),
        ("100.64.0.1", "private"),
        ("fd12::1", "private"),
        ("224.0.0.1", "private"),
        ("127.8.8.8", "loopback"),
        ("::1", "loopback"),
        ("0.0.0.0", "loopback"),
        ("169.254.170.2", "metadata"),
        ("fe80::a9fe:a9fe", "metadata"),
        ("fd00:ec2::254", "metadata"),
        ("fd20:ce::254", "metadata"),
        ("100.100.100.200", "metadata"),
        ("168.63.129.16", "metadata"),
    ],
)
def test_address_kinds_follow_the_registries(address: str, kind: str) -> None:
    assert kind_of(ipaddress.ip_address(address)) == kind


@pytest.mark.parametrize("name", ["metadata.google.internal", "METADATA.google.internal.", "metadata", "instance-data"])
def test_names_of_metadata_services_are_not_called(name: str) -> None:
    assert EgressPolicy().denial_reason(name)
    assert EgressPolicy().denial_reason(name, "10.0.0.1")
    assert not EVERYWHERE.denial_reason(name, "169.254.169.254")


def test_an_allow_list_refuses_all_other_targets() -> None:
    egress_policy = EgressPolicy.from_env({ENV: "10.0.0.0/8, 169.254.1.1,hooks.slack.com *.example.com fd12::/16"})

    assert not egress_policy.denial_reason("llm", "10.2.3.4")
    assert not egress_policy.denial_reason("169.254.1.1")
    assert not egress_policy.denial_reason("hooks.slack.com", "3.4.5.6")
    assert not egress_policy.denial_reason("Hooks.Slack.com.", "3.4.5.6")
    assert not egress_policy.denial_reason("a.b.example.com", "192.168.0.1")
    assert not egress_policy.denial_reason("llm", "fd12::7")
    assert egress_policy.denial_reason("example.com", "192.168.0.1")
    assert egress_policy.denial_reason("hooks.slack.com.evil.net", "3.4.5.6")
    assert egress_policy.denial_reason("evil-hooks.slack.com", "3.4.5.6")
    assert egress_policy.denial_reason("llm", "127.0.0.1")
    assert egress_policy.denial_reason("hooks.slack.com", "169.254.169.254")


def test_private_networks_and_the_local_machine_can_be_excluded() -> None:
    egress_policy = EgressPolicy.from_env({ENV: "public"})

    with pytest.raises(
        EgressDeniedError, match=r"db \(10.0.0.1\) is an address of a private network.*STAGELENS_MAY_CALL"
    ):
        egress_policy.check("db", ["8.8.8.8", "10.0.0.1"])
    with pytest.raises(EgressDeniedError, match=r"127.0.0.1 is this machine"):
        egress_policy.check("127.0.0.1", ["127.0.0.1"])
    egress_policy.check("db", ["8.8.8.8"])


@pytest.mark.parametrize("text", ["10.0.0.0/33", "https://hooks.slack.com", "*", "10.0.0", "a..b", "pub lic!"])
def test_an_invalid_entry_is_an_error(text: str) -> None:
    with pytest.raises(ConfigError, match=r"STAGELENS_MAY_CALL has .*; write kinds"):
        EgressPolicy.from_env({ENV: text})


@pytest.mark.parametrize("text", ["", " , ", "public,private loopback"])
def test_the_default_refuses_only_metadata_addresses(text: str) -> None:
    assert EgressPolicy.from_env({ENV: text}) == EgressPolicy()


@pytest.mark.parametrize("address", ["fec0::1", "feff::1", "192.88.99.1", "2002:c058:6301::1"])
def test_former_public_networks_are_internal(address: str) -> None:
    assert EgressPolicy.from_env({ENV: "public"}).denial_reason("host", address)
