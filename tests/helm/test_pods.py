"""Rules for all rendered objects with any values: users of pods, their settings, and the selectors."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagelens.cli.servers import SERVERS
from tests.helm.given_values import CHOICES, EXAMPLES, Manifest, Manifests, Values, merged

pytestmark = pytest.mark.stacks

ROOT = Path(__file__).parents[2]
DOCUMENTED = set(re.findall(r"`(STAGELENS_[A-Z0-9_]+)`", (ROOT / "docs" / "configuration.md").read_text()))
WORKLOADS = ("Deployment", "StatefulSet")


@st.composite
def values(draw: st.DrawFn) -> Values:
    if draw(st.booleans()):
        return EXAMPLES[draw(st.sampled_from(sorted(EXAMPLES)))]
    return merged(*(draw(st.sampled_from(choice)) for choice in CHOICES))


def pods(made: list[Manifest]) -> list[Manifest]:
    return [manifest["spec"]["template"] for manifest in made if manifest["kind"] in WORKLOADS]


def containers(made: list[Manifest]) -> Iterator[tuple[Manifest, Manifest]]:
    for pod in pods(made):
        for container in pod["spec"]["containers"]:
            yield pod, container


@settings(deadline=None, max_examples=25)
@given(given_values=values())
def test_pods_have_no_unneeded_privileges(manifests: Manifests, given_values: Values) -> None:
    for pod, container in containers(manifests(given_values)):
        spec, security = pod["spec"], container["securityContext"]
        own = {mount["name"] for mount in container.get("volumeMounts", [])}

        assert spec["automountServiceAccountToken"] is False
        assert spec["enableServiceLinks"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert security["allowPrivilegeEscalation"] is False
        assert security["readOnlyRootFilesystem"] is True
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert container["name"] != "stagelens" or {"cpu", "memory"} == set(container["resources"]["requests"])
        assert own <= {volume["name"] for volume in spec["volumes"]}


@settings(deadline=None, max_examples=25)
@given(given_values=values())
def test_every_selector_matches_an_object(manifests: Manifests, given_values: Values) -> None:
    made = manifests(given_values)
    labels = [pod["metadata"]["labels"] for pod in pods(made)]
    ports = {port["name"] for _, container in containers(made) for port in container.get("ports", [])}
    services = [manifest for manifest in made if manifest["kind"] == "Service"]
    for manifest in made:
        spec = manifest.get("spec", {})
        selector = spec.get("selector") or spec.get("podSelector") or {}
        wanted = (selector.get("matchLabels") or selector).items()
        # Those of a workload cannot be changed: an upgrade with another version among them would fail.
        assert {key.partition("/")[2] for key, _ in wanted} <= {"name", "instance", "component"}
        if manifest["kind"] == "ServiceMonitor":
            found = [each["spec"]["ports"] for each in services if wanted <= each["metadata"]["labels"].items()]

            assert {endpoint["port"] for endpoint in spec["endpoints"]} <= {
                port["name"] for each in found for port in each
            }
        else:
            assert not wanted or [label for label in labels if wanted <= label.items()], manifest["metadata"]["name"]
    for service in services:
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports


@settings(deadline=None, max_examples=25)
@given(given_values=values())
def test_every_reference_exists(manifests: Manifests, given_values: Values) -> None:
    made = manifests(given_values)
    named = {(manifest["kind"], manifest["metadata"]["name"]) for manifest in made}

    assert len(named) == len(made)
    for pod in pods(made):
        for volume in pod["spec"]["volumes"]:
            assert "configMap" not in volume or ("ConfigMap", volume["configMap"]["name"]) in named
            claim = volume.get("persistentVolumeClaim")
            assert claim is None or ("PersistentVolumeClaim", claim["claimName"]) in named
    for manifest in made:
        if manifest["kind"] == "HorizontalPodAutoscaler":
            target = manifest["spec"]["scaleTargetRef"]
            assert (target["kind"], target["name"]) in named
        if manifest["kind"] == "Ingress":
            backend = manifest["spec"]["rules"][0]["http"]["paths"][0]["backend"]["service"]
            assert ("Service", backend["name"]) in named


@settings(deadline=None, max_examples=25)
@given(given_values=values())
def test_no_secret_is_created_or_rendered(manifests: Manifests, given_values: Values) -> None:
    made = manifests(given_values)

    assert "Secret" not in {manifest["kind"] for manifest in made}
    assert not re.search(r"://[^/\s\"]*:[^/\s\"]*@", json.dumps(made))
    for _, container in containers(made):
        names = {variable["name"] for variable in container.get("env", []) if "value" in variable}
        assert not [name for name in names if name.endswith(("_TOKEN", "_POINTS", "_SECRET", "_KEY", "_PASSWORD"))]


@settings(deadline=None, max_examples=25)
@given(given_values=values())
def test_pod_environment_variables_exist_in_the_code(manifests: Manifests, given_values: Values) -> None:
    for _, container in containers(manifests(given_values)):
        if container["name"] != "stagelens":
            continue
        names = [variable["name"] for variable in container["env"]]

        assert len(names) == len(set(names))
        assert {name for name in names if name.startswith("STAGELENS_")} <= DOCUMENTED
        assert container["args"][0] in SERVERS
