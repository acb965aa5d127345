"""Wrong values, which the chart refuses before anything is installed."""

from __future__ import annotations

import pytest
import yaml
from helm_python.errors import HelmError

from tests.helm.given_values import Render

pytestmark = pytest.mark.stacks


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ("store: {database: 'postgresql://stagelens:hunter2@db/stagelens'}", "store/database"),
        ("settings: {STAGELENS_DATABASE: 'postgresql://stagelens:hunter2@db/stagelens'}", "store.existingSecret"),
        (
            "store: {existingSecret: 'postgresql://stagelens:hunter2@db/stagelens'}",
            "store.existingSecret is not the name",
        ),
        ("tokens: {collector: hunter2}", "tokens.existingSecret"),
        ("collector: {token: hunter2}", "tokens.existingSecret"),
        ("dashboard: {token: hunter2}", "tokens.existingSecret"),
        ("settings: {STAGELENS_DASHBOARD_TOKEN: hunter2}", "tokens.existingSecret"),
        ("alerts: {secretEnv: [{name: KEY, secret: s, key: k, value: hunter2}]}", "secretEnv"),
        (
            "alerts: {slo: 'channels: [{kind: pagerduty, routing_key: hunter2}]'}",
            "routing_key_file: /etc/stagelens/secrets",
        ),
        (
            'alerts: {slo: "slos: []\\n---\\nchannels:\\n  - {kind: slack, webhook_url: https://hunter2}\\n"}',
            "webhook_url_file",
        ),
        ("alerts: {slo: 'channels: hunter2'}", "stagelens check slo.yaml"),
        ("alerts: {slo: 'slos: [hunter2'}", "stagelens check slo.yaml"),
        ("colector: {}", "colector"),
        ("collector: {replica: 3}", "replica"),
        ("collector: {replicas: '3'}", "collector/replicas"),
        ("mode: both", "'single', 'split'"),
        ("mode: split", "kubectl create secret generic stagelens-store"),
        ("collector: {autoscaling: {enabled: true}}", "mode: single runs one pod"),
        ("store: {pointsKey: points}", "store.existingSecret"),
        ("store: {budget: 10GiB}", "90 % of store.volume.size"),
        ("store: {budget: lots}", "store/budget"),
        ("collector: {access: file}", "access.tokens or access.tls.client_ca"),
        ("collector: {config: 'access: [hunter2'}", "stagelens collector --check"),
        ("collector: {config: 'access: hunter2'}", "stagelens collector --check"),
        ("collector: {config: 'access: {tls: [hunter2]}'}", "stagelens collector --check"),
        ("collector: {config: 'access: {tokens: [{name: a, token: hunter2}]}'}", "token_file: /etc/stagelens/secrets"),
        (
            'collector: {config: "scrape:\\n  targets:\\n  - headers:\\n      authorization: Bearer hunter2\\n"}',
            "bearer_token_file: /etc/stagelens/secrets",
        ),
        (
            "collector: {config: 'access: {tls: {certificate: /etc/stagelens/tls/tls.crt, key: /etc/stagelens/tls/tls.key}}'}",
            "collector.tls.existingSecret",
        ),
        ("collector: {tls: {existingSecret: tls}}", "/etc/stagelens/tls/tls.crt"),
        ("dashboard: {access: users}", "stagelens dashboard --add-user"),
        ("dashboard: {access: proxy}", "dashboard.proxy.trusted"),
        ("dashboard: {ingress: {enabled: true}}", "dashboard.ingress.host"),
        ("dashboard: {sidecars: [{name: proxy, image: proxy}]}", "dashboard.service.targetPort"),
        ("fullnameOverride: Stage_Lens", "fullnameOverride"),
        ("podLabels: {app.kubernetes.io/name: x}", "app.kubernetes.io/name"),
        ("dashboard: {ingress: {enabled: true, host: 'https://lens.example.com'}}", "ingress/host"),
    ],
)
def test_invalid_values_are_refused_with_the_fix(rendered: Render, values: str, error: str) -> None:
    with pytest.raises(HelmError) as refused:
        rendered(yaml.safe_load(values))

    assert error in str(refused.value)
    assert "hunter2" not in str(refused.value)
