"""Wrong values, which the chart refuses before anything is installed."""

from __future__ import annotations

import pytest
from helm_python.errors import HelmError

from tests.helm.given_values import Render, Values

pytestmark = pytest.mark.stacks

DSN = "postgresql://stagelens:hunter2@db/stagelens"
TLS = "access: {tls: {certificate: /etc/stagelens/tls/tls.crt, key: /etc/stagelens/tls/tls.key}}"
WRONG = [
    pytest.param({"store": {"database": DSN}}, "store/database", id="a DSN in values"),
    pytest.param({"settings": {"STAGELENS_DATABASE": DSN}}, "store.existingSecret", id="a DSN among the settings"),
    pytest.param({"store": {"existingSecret": DSN}}, "store.existingSecret is not the name", id="a DSN for a name"),
    pytest.param({"tokens": {"collector": "hunter2"}}, "tokens.existingSecret", id="a token in values"),
    pytest.param({"collector": {"token": "hunter2"}}, "tokens.existingSecret", id="a token of the collector"),
    pytest.param({"dashboard": {"token": "hunter2"}}, "tokens.existingSecret", id="a token of the dashboard"),
    pytest.param(
        {"settings": {"STAGELENS_DASHBOARD_TOKEN": "hunter2"}}, "tokens.existingSecret", id="a token among the settings"
    ),
    pytest.param(
        {"alerts": {"secretEnv": [{"name": "KEY", "secret": "s", "key": "k", "value": "hunter2"}]}},
        "secretEnv",
        id="the value of a secret",
    ),
    pytest.param(
        {"alerts": {"slo": "channels: [{kind: pagerduty, routing_key: hunter2}]"}},
        "routing_key_file: /etc/stagelens/secrets",
        id="a secret in the SLO file",
    ),
    pytest.param(
        {"alerts": {"slo": "slos: []\n---\nchannels:\n  - {kind: slack, webhook_url: https://hunter2}\n"}},
        "webhook_url_file",
        id="a secret in its second document",
    ),
    pytest.param({"alerts": {"slo": "channels: hunter2"}}, "stagelens check slo.yaml", id="channels of another form"),
    pytest.param({"alerts": {"slo": "slos: [hunter2"}}, "stagelens check slo.yaml", id="an SLO file that is no YAML"),
    pytest.param({"colector": {}}, "colector", id="a misspelt part"),
    pytest.param({"collector": {"replica": 3}}, "replica", id="a misspelt value"),
    pytest.param({"collector": {"replicas": "3"}}, "collector/replicas", id="a number as text"),
    pytest.param({"mode": "both"}, "'single', 'split'", id="a mode that is none"),
    pytest.param({"mode": "split"}, "kubectl create secret generic stagelens-store", id="split without a database"),
    pytest.param(
        {"collector": {"autoscaling": {"enabled": True}}}, "mode: single runs one pod", id="one file, many pods"
    ),
    pytest.param({"store": {"pointsKey": "points"}}, "store.existingSecret", id="a ClickHouse without its DSN"),
    pytest.param({"store": {"budget": "10GiB"}}, "90 % of store.volume.size", id="a budget as large as the volume"),
    pytest.param({"store": {"budget": "lots"}}, "store/budget", id="a budget that is no size"),
    pytest.param(
        {"collector": {"access": "file"}}, "access.tokens or access.tls.client_ca", id="a file that asks nobody"
    ),
    pytest.param(
        {"collector": {"config": "access: [hunter2"}}, "stagelens collector --check", id="a config that is no YAML"
    ),
    pytest.param(
        {"collector": {"config": "access: hunter2"}}, "stagelens collector --check", id="a config of another form"
    ),
    pytest.param(
        {"collector": {"config": "access: {tls: [hunter2]}"}}, "stagelens collector --check", id="TLS of another form"
    ),
    pytest.param(
        {"collector": {"config": "access: {tokens: [{name: a, token: hunter2}]}"}},
        "token_file: /etc/stagelens/secrets",
        id="a token in the collector's file",
    ),
    pytest.param(
        {"collector": {"config": "scrape:\n  targets:\n  - headers:\n      authorization: Bearer hunter2\n"}},
        "bearer_token_file: /etc/stagelens/secrets",
        id="a header in the collector's file",
    ),
    pytest.param({"collector": {"config": TLS}}, "collector.tls.existingSecret", id="TLS without a certificate"),
    pytest.param(
        {"collector": {"tls": {"existingSecret": "tls"}}}, "/etc/stagelens/tls/tls.crt", id="a certificate without TLS"
    ),
    pytest.param({"dashboard": {"access": "users"}}, "stagelens dashboard --add-user", id="no users"),
    pytest.param({"dashboard": {"access": "proxy"}}, "dashboard.proxy.trusted", id="a proxy anybody can be"),
    pytest.param(
        {"dashboard": {"ingress": {"enabled": True}}}, "dashboard.ingress.host", id="an ingress without a name"
    ),
    pytest.param(
        {"dashboard": {"sidecars": [{"name": "proxy", "image": "proxy"}]}},
        "dashboard.service.targetPort",
        id="a proxy past which all go",
    ),
    pytest.param({"fullnameOverride": "Stage_Lens"}, "fullnameOverride", id="a name Kubernetes would not take"),
    pytest.param(
        {"podLabels": {"app.kubernetes.io/name": "x"}}, "app.kubernetes.io/name", id="a label pods are found by"
    ),
    pytest.param(
        {"dashboard": {"ingress": {"enabled": True, "host": "https://lens.example.com"}}}, "ingress/host", id="no host"
    ),
]


@pytest.mark.parametrize(("values", "error"), WRONG)
def test_invalid_values_are_refused_with_the_fix(rendered: Render, values: Values, error: str) -> None:
    with pytest.raises(HelmError) as refused:
        rendered(values)

    assert error in str(refused.value)
    assert "hunter2" not in str(refused.value)
