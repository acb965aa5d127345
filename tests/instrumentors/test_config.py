"""The agent's settings: what is read from the environment, and what becomes of what cannot be read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagelens.instrumentors.config import AgentConfig, ClientTlsFiles, SamplingLimits


def test_settings_of_opentelemetry_and_stagelens_are_read(tmp_path: Path) -> None:
    for name in ("ca.pem", "own.pem", "own.key"):
        (tmp_path / name).touch()
    config = AgentConfig.from_env(
        {
            "OTEL_EXPORTER_OTLP_ENDPOINT": "https://collector.example:4318/base/",
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://traces.example/in",
            "OTEL_EXPORTER_OTLP_HEADERS": "x-api-key=a%20b, x-tenant=1=2",
            "OTEL_EXPORTER_OTLP_CERTIFICATE": str(tmp_path / "ca.pem"),
            "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE": str(tmp_path / "own.pem"),
            "OTEL_EXPORTER_OTLP_CLIENT_KEY": str(tmp_path / "own.key"),
            "OTEL_EXPORTER_OTLP_TIMEOUT": "2500",
            "OTEL_RESOURCE_ATTRIBUTES": "service.name=a,service.version=1,team=ml,service.instance.id=shared",
            "OTEL_SERVICE_NAME": "b",
            "STAGELENS_SERVICE_VERSION": "2",
            "STAGELENS_EXPORT_INTERVAL": "250ms",
            "STAGELENS_BUFFER_SIZE": "1MiB",
            "STAGELENS_KEEP_SLOW": "0",
            "STAGELENS_PROFILE": "off",
            "OTEL_SDK_DISABLED": "TRUE",
        }
    )

    assert config == AgentConfig(
        metrics_url="https://collector.example:4318/base/v1/metrics",
        traces_url="http://traces.example/in",
        headers={"x-api-key": "a b", "x-tenant": "1=2"},
        trust=ClientTlsFiles(str(tmp_path / "ca.pem"), str(tmp_path / "own.pem"), str(tmp_path / "own.key")),
        timeout_seconds=2.5,
        resource={"service.name": "b", "service.version": "2", "team": "ml"},
        enabled=False,
        interval_seconds=0.25,
        buffer_bytes=2**20,
        keep=SamplingLimits(slow=0),
        profile=False,
    )


@pytest.mark.parametrize("name", ["CLIENT_CERTIFICATE", "CLIENT_KEY"])
def test_a_client_certificate_without_key_is_ignored(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "half.pem").touch()
    config = AgentConfig.from_env({f"OTEL_EXPORTER_OTLP_{name}": str(tmp_path / "half.pem")})

    assert config.trust == ClientTlsFiles()
    assert "must both name a file" in caplog.text


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://[::1"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://host:99999"),
        ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://a b/"),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/nowhere.pem"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "0"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "9" * 5000),
        ("OTEL_RESOURCE_ATTRIBUTES", "service.version"),
        ("OTEL_SDK_DISABLED", "yes"),
        ("STAGELENS_EXPORT_INTERVAL", "1ms"),
        ("STAGELENS_EXPORT_INTERVAL", "9999999999d"),
        ("STAGELENS_BUFFER_SIZE", "lots"),
        ("STAGELENS_PROFILE", "perhaps"),
        ("STAGELENS_KEEP_ERRORS", "-1"),
        ("STAGELENS_KEEP_UNIFORM", "1000000"),
        ("STAGELENS_KEEP_UNIFORM", "9" * 5000),
    ],
)
def test_an_invalid_value_is_logged_once_and_its_default_used(
    key: str, value: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert AgentConfig.from_env({key: value}) == AgentConfig.from_env({})
    assert [message.startswith(f"stagelens: {key} is {value!r}") for message in caplog.messages] == [True]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("HEADERS", value) for value in ("hunter2", "x-key=hunter2%0d%0aHost: elsewhere", "x key=hunter2")),
        ("HEADERS", "x-key=hunter2\u00e9"),
        *(("ENDPOINT", f"{value}:hunter2@collector:0") for value in ("user", "http://user")),
        ("ENDPOINT", "http://user:hunter2 @collector"),
    ],
)
def test_a_broken_setting_is_reported_without_its_secret(
    key: str, value: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = AgentConfig.from_env({f"OTEL_EXPORTER_OTLP_{key}": value})

    assert config == AgentConfig.from_env({})
    assert len(caplog.messages) == 1
    assert key in caplog.text
    assert "hunter2" not in caplog.text
    assert "hunter2" not in repr(AgentConfig(headers={"x-key": "hunter2"}))


KEYS = ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_HEADERS", "OTEL_RESOURCE_ATTRIBUTES"]


@given(st.dictionaries(st.sampled_from(KEYS), st.text(max_size=30)))
def test_no_environment_value_stops_the_host_process(environment: dict[str, str]) -> None:
    assert AgentConfig.from_env(environment).enabled


def test_a_name_that_is_not_utf8_is_made_valid() -> None:
    name, team = (os.fsdecode(text) for text in (b"caf\xe9", b"\xff"))
    resource = AgentConfig.from_env({"OTEL_SERVICE_NAME": name, "OTEL_RESOURCE_ATTRIBUTES": f"team={team}"}).resource

    assert resource == {"service.name": "caf\ufffd", "team": "\ufffd"}
