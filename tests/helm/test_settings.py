"""The settings that values may give by their names, held to the code."""

from __future__ import annotations

import json
from itertools import chain
from typing import Any

import pytest
from helm_python.errors import HelmError

from stagelens.core.settings import schema
from tests.helm.given_values import CHART, CHOICES, EXAMPLES, Manifests, Values

pytestmark = pytest.mark.stacks

SERVERS = (
    *schema.LOGS,
    *schema.STORE,
    *schema.COLLECTOR,
    *schema.DASHBOARD,
    *schema.ALERTS,
    *schema.ALERT_METRICS,
)
LISTED: dict[str, dict[str, Any]] = json.loads((CHART / "values.schema.json").read_text())["properties"]["settings"][
    "properties"
]
FREE = {name for name, rule in LISTED.items() if "const" not in rule}


def environment_values(manifests: Manifests, values: Values) -> dict[str, str]:
    pods = [made["spec"]["template"]["spec"] for made in manifests(values) if "template" in made.get("spec", {})]
    return {each["name"]: each["value"] for pod in pods for each in pod["containers"][0]["env"] if "value" in each}


def test_chart_settings_equal_the_server_settings() -> None:
    assert set(LISTED) == {setting.variable for setting in SERVERS}


@pytest.mark.parametrize("values", [*EXAMPLES.values(), *chain(*CHOICES)], ids=str)
def test_settings_of_the_chart_are_not_user_settings(manifests: Manifests, values: Values) -> None:
    assert not FREE & environment_values(manifests, values | {"settings": {}}).keys()


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("STAGELENS_TRACS", "no setting of the servers: docs/configuration.md"),
        ("STAGELENS_KEEP_SLOW", "those of agents belong to the workloads"),
        ("MAX_BODY", "no setting of the servers"),
        ("STAGELENS_STORAGE_BUDGET", "set by the chart, from store.budget"),
    ],
)
def test_an_ineffective_setting_is_refused(manifests: Manifests, name: str, error: str) -> None:
    with pytest.raises(HelmError) as refused:
        manifests({"settings": {name: "all"}})

    assert f"/settings/{name}" in str(refused.value)
    assert error in str(refused.value)


@pytest.mark.parametrize(("given", "written"), [(2_000_000, "2000000"), ("64MiB", "64MiB"), (True, "true")])
def test_a_setting_is_rendered_unchanged(manifests: Manifests, given: object, written: str) -> None:
    found = environment_values(manifests, {"settings": {"STAGELENS_QUEUE_BATCHES": given}})

    assert found["STAGELENS_QUEUE_BATCHES"] == written


def test_a_secret_used_twice_in_one_pod_is_rendered_once(manifests: Manifests) -> None:
    key = {"name": "SHARED_KEY", "secret": "shared", "key": "key"}
    made = manifests({"collector": {"secretEnv": [key]}, "alerts": {"slo": "slos: []", "secretEnv": [key]}})
    (pod,) = (each["spec"]["template"]["spec"] for each in made if each["kind"] == "StatefulSet")

    assert [each["name"] for each in pod["containers"][0]["env"]].count("SHARED_KEY") == 1
