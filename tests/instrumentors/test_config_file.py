"""The declarative configuration file of OpenTelemetry, as the agent reads it and as the SDK does."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from stagelens.cli.supervisor import child_environment
from stagelens.instrumentors.config import DEFAULT_ENDPOINT, AgentConfig, ClientTlsFiles
from stagelens.instrumentors.config_file import apply_config_file
from tests.instrumentors.conftest import Sink, plain

pytestmark = pytest.mark.since("opentelemetry-sdk", "1.45")

WHOLE = """
file_format: "1.0"
resource:
  attributes_list: service.namespace=shop,service.version=1
  attributes:
    - {name: service.name, value: checkout}
    - {name: service.version, value: "${VERSION:-2}"}
    - {name: cores, value: 4, type: int}
    - {name: service.instance.id, value: shared by all workers}
meter_provider:
  readers:
    - periodic:
        exporter:
          otlp_http:
            endpoint: https://collector.example/base/v1/metrics
            timeout: 2500
            headers_list: x-tenant=one
            headers: [{name: authorization, value: "Bearer a,b"}]
            tls: {ca_file: CA}
tracer_provider:
  processors:
    - simple: {exporter: {console: }}
    - batch:
        exporter:
          otlp_http:
            endpoint: http://traces.example/in
            headers_list: x-tenant=one
            headers: [{name: authorization, value: "Bearer a,b"}]
            tls: {ca_file: CA}
"""
TRACES_ONLY = """
file_format: "1.0"
tracer_provider:
  processors: [{batch: {exporter: {otlp_http: {endpoint: "ADDRESS/v1/traces", compression: gzip}}}}]
resource:
  attributes: [{name: service.name, value: checkout}]
"""
# A span of the SDK inside of a request of the agent; both are sent when the process ends.
PROGRAM = """
from opentelemetry import trace
from opentelemetry.sdk._configuration import _OTelSDKConfigurator
import stagelens

_OTelSDKConfigurator().configure()
with stagelens.request("work"), trace.get_tracer("own").start_as_current_span("of the sdk"):
    pass
"""


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., AgentConfig]:
    """Reads the settings of a file with a text, None for no file, and of variables."""

    def read(text: str | None, **variables: str) -> AgentConfig:
        if text is not None:
            (tmp_path / "otel.yaml").write_text(text)
        return AgentConfig.from_env({"OTEL_CONFIG_FILE": str(tmp_path / "otel.yaml"), **variables})

    return read


def test_the_file_replaces_the_variables_of_opentelemetry(tmp_path: Path, read: Callable[..., AgentConfig]) -> None:
    (tmp_path / "ca.pem").touch()
    config = read(
        WHOLE.replace("CA}", f"{tmp_path / 'ca.pem'}}}"),
        OTEL_SERVICE_NAME="ignored",
        OTEL_EXPORTER_OTLP_ENDPOINT="http://ignored.example",
        STAGELENS_EXPORT_INTERVAL="250ms",
    )

    assert config == AgentConfig(
        metrics_url="https://collector.example/base/v1/metrics",
        traces_url="http://traces.example/in",
        headers={"x-tenant": "one", "authorization": "Bearer a,b"},
        trust=ClientTlsFiles(str(tmp_path / "ca.pem")),
        timeout_seconds=2.5,
        resource={"service.namespace": "shop", "service.version": "2", "service.name": "checkout", "cores": "4"},
        interval_seconds=0.25,
    )


def test_headers_of_one_exporter_are_not_sent_to_another(
    read: Callable[..., AgentConfig], caplog: pytest.LogCaptureFixture
) -> None:
    config = read(WHOLE.replace("            tls: {ca_file: CA}\n", "").rpartition("            headers_list")[0])

    assert config.traces_url == "https://collector.example/base/v1/traces"
    assert config.headers["authorization"] == "Bearer a,b"
    assert "different headers" in caplog.text


def test_one_exporter_gives_the_address_of_both_signals(
    read: Callable[..., AgentConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["/srv/shop.py"])
    config = read(TRACES_ONLY.replace("ADDRESS", "http://one.example:4318").partition("resource:")[0])

    assert config.metrics_url == "http://one.example:4318/v1/metrics"
    assert config.traces_url == "http://one.example:4318/v1/traces"
    assert config.resource == {"service.name": "shop"}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (None, "not found"),
        ("", "empty"),
        ("file_format: '1.0'\nresource: [", "line 2"),
        ("resource: {}", "file_format"),
        ("file_format: '1.0'\nmeter_provider: {readers: 5}", "readers"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_and_left_out(
    read: Callable[..., AgentConfig], caplog: pytest.LogCaptureFixture, text: str | None, complaint: str
) -> None:
    assert read(text, OTEL_SERVICE_NAME="shop").resource["service.name"] == "shop"
    assert "otel.yaml" in caplog.text
    assert complaint in caplog.text


@pytest.mark.parametrize(
    "text",
    [
        "file_format: '1.0'\nmeter_provider: {readers: [{periodic: {exporter: {otlp_http: {headers: 's3cret'}}}}]}",
        "file_format: '1.0'\nheaders: [s3cret",
    ],
)
def test_the_log_has_no_value_of_a_file(
    read: Callable[..., AgentConfig], caplog: pytest.LogCaptureFixture, text: str
) -> None:
    read(text)

    [ours] = [record.getMessage() for record in caplog.records if record.name == "stagelens"]
    assert "otel.yaml" in ours
    assert "s3cret" not in ours


def test_without_the_package_the_log_names_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.configuration", None)

    assert apply_config_file({"OTEL_CONFIG_FILE": str(tmp_path), "A": "b"}, warns=True) == {"A": "b"}
    assert "pip install opentelemetry-configuration" in caplog.text


def test_a_file_without_an_http_exporter_is_named(
    read: Callable[..., AgentConfig], caplog: pytest.LogCaptureFixture
) -> None:
    config = read(
        "file_format: '1.0'\ndisabled: true\ntracer_provider: {processors: [{batch: {exporter: {otlp_grpc: {}}}}]}"
    )

    assert not config.enabled
    assert config.metrics_url == f"{DEFAULT_ENDPOINT}/v1/metrics"
    assert "no otlp_http exporter" in caplog.text


def test_a_run_saved_here_keeps_the_name_but_not_the_address(tmp_path: Path) -> None:
    path = tmp_path / "otel.yaml"
    path.write_text(TRACES_ONLY.replace("ADDRESS", "http://one.example:4318"))

    env = child_environment("http://127.0.0.1:1", {"OTEL_CONFIG_FILE": str(path)})

    assert "OTEL_CONFIG_FILE" not in env
    config = AgentConfig.from_env(env)
    assert (config.metrics_url, config.resource["service.name"]) == ("http://127.0.0.1:1/v1/metrics", "checkout")


def test_the_agent_and_the_sdk_send_to_the_same_place(tmp_path: Path, sink: Sink) -> None:
    path, program = tmp_path / "otel.yaml", tmp_path / "program.py"
    path.write_text(TRACES_ONLY.replace("ADDRESS", sink.address))
    program.write_text(PROGRAM)
    env = {key: value for key, value in sink.environment().items() if not key.startswith("OTEL_")}
    subprocess.run(
        [sys.executable, "-m", "stagelens", "run", "--", sys.executable, program],
        env=env | {"OTEL_CONFIG_FILE": str(path), "OTEL_SERVICE_NAME": "ignored"},
        check=True,
    )

    resources = [
        (resource["resource"], [span["name"] for scope in resource.get("scopeSpans", ()) for span in scope["spans"]])
        for post in sink.posts
        for resource in post.decoded["resourceSpans" if post.path == "/v1/traces" else "resourceMetrics"]
    ]
    assert {plain(resource["attributes"])["service.name"] for resource, _ in resources} == {"checkout"}
    assert any("of the sdk" in spans for _, spans in resources)
    assert sink.requests() == 1
