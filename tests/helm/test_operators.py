"""Objects for the Prometheus Operator and the OpenTelemetry Operator, and the network access to them."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from stagelens.alerts import export
from tests.helm.given_values import CHART, Manifest, Manifests, Render, Values, merged

pytestmark = pytest.mark.stacks

SPLIT: Values = {"mode": "split", "store": {"existingSecret": "store"}}
INFERENCE, MONITORING = ({"podSelector": {"matchLabels": {"is": name}}} for name in ("inference", "monitoring"))


def one(made: list[Manifest], kind: str, name: str = "stagelens") -> dict[str, Any]:
    (found,) = (each["spec"] for each in made if each["kind"] == kind and each["metadata"]["name"] == name)
    return found


def test_chart_rules_equal_the_exported_rules() -> None:
    assert (CHART / "rules.yaml").read_text() == export.write_self_monitoring_rules()


def test_chart_rules_link_to_the_configured_runbook(manifests: Manifests) -> None:
    where = "https://docs.example.com/runbook.html"
    found = one(manifests({"prometheusRule": {"enabled": True, "runbook": where}}), "PrometheusRule")

    assert found == yaml.safe_load(export.write_self_monitoring_rules(where))


@pytest.mark.parametrize("mode", [{}, SPLIT])
def test_network_policy_permits_prometheus_and_senders(manifests: Manifests, mode: Values) -> None:
    values = {"networkPolicy": {"collectorFrom": [INFERENCE], "metricsFrom": [MONITORING]}}
    policy = one(manifests(merged(mode, values)), "NetworkPolicy", f"stagelens-{'collector' if mode else 'single'}")

    assert {"ports": [{"port": "otlp-http"}], "from": [MONITORING]} in policy["ingress"]
    assert {"ports": [{"port": "otlp-http"}, {"port": "otlp-grpc"}], "from": [INFERENCE]} in policy["ingress"]


def test_a_prometheus_selector_does_not_restrict_senders(manifests: Manifests) -> None:
    policy = one(manifests({"networkPolicy": {"metricsFrom": [MONITORING]}}), "NetworkPolicy", "stagelens-single")

    assert all("from" not in door for door in policy["ingress"])


def test_a_blocked_prometheus_is_reported(rendered: Render) -> None:
    values = {"serviceMonitor": {"enabled": True}, "networkPolicy": {"collectorFrom": [INFERENCE]}}

    assert "networkPolicy.metricsFrom" in rendered(values)["NOTES.txt"]


def test_workloads_use_the_chart_image_and_token(manifests: Manifests) -> None:
    values = {
        "image": {"repository": "registry.example.com/stagelens", "digest": f"sha256:{'0' * 64}"},
        "instrumentation": {"enabled": True, "token": {"secret": "theirs"}},
    }
    python = one(manifests(values), "Instrumentation")["python"]

    assert python["image"] == "registry.example.com/stagelens-instrumentation:0.2.0"
    assert python["env"][0]["valueFrom"]["secretKeyRef"] == {"name": "theirs", "key": "collector-token"}
