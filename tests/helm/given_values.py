"""Values of the chart in tests: none, each example, and any combination of options."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

HELM = Path(__file__).parents[2] / "helm"
CHART = HELM / "stagelens"

Values = dict[str, Any]
# One object of Kubernetes.
Manifest = dict[str, Any]
Render = Callable[[Values], dict[str, str]]
Manifests = Callable[[Values], list[Manifest]]

EXAMPLES: dict[str, Values] = {
    "defaults": {},
    **{path.stem: yaml.safe_load(path.read_text()) for path in sorted((HELM / "examples").glob("*.yaml"))},
}

# Of each list one.
CHOICES: list[list[Values]] = yaml.safe_load("""
- - {}
  - {mode: split, store: {existingSecret: store}}
  - {store: {existingSecret: store, pointsKey: points}}
- - {}
  - {collector: {access: open, service: {type: LoadBalancer}}}
  - collector:
      access: file
      config: "access: {tls: {certificate: /etc/stagelens/tls/tls.crt, key: /etc/stagelens/tls/tls.key, client_ca: /etc/stagelens/tls/ca.crt}}"
      tls: {existingSecret: tls}
  - {collector: {secretEnv: [&key {name: SHARED_KEY, secret: shared, key: key}]}}
- - {}
  - {dashboard: {access: users, users: {existingSecret: users}, prices: "prices: []"}}
  - dashboard:
      access: proxy
      proxy: {trusted: [127.0.0.1, 10.0.0.0/8], groupsHeader: X-Groups}
      roles: "groups: [{name: sre, role: admin, users: [ada]}]"
      sidecars: [{name: proxy, image: proxy, ports: [{name: front, containerPort: 1234}]}]
      service: {targetPort: front}
      ingress: {enabled: true, host: lens.example.com}
- - {}
  - {alerts: {slo: "slos: []", secretFiles: [alerts], secretEnv: [*key], replicas: 1}}
- - {}
  - {openshift: true}
  - {fullnameOverride: lens}
  - {settings: {STAGELENS_TRACES: all, STAGELENS_QUEUE_BATCHES: 7}}
- - {}
  - {serviceMonitor: {enabled: true}, prometheusRule: {enabled: true}, instrumentation: {enabled: true}}
  - {networkPolicy: {enabled: false}}
""")


def merged(*layers: Values) -> Values:
    found: Values = {}
    for layer in layers:
        for key, value in layer.items():
            both = isinstance(value, dict) and isinstance(found.get(key), dict)
            found[key] = merged(found[key], value) if both else value
    return found
