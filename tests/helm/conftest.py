"""The chart as the real Helm engine reads it."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from tests.helm.given_values import CHART, Manifests, Render, Values


@pytest.fixture(scope="session")
def rendered() -> Render:
    from helm_python.chart import Chart  # noqa: PLC0415 - it is not installed for the other tiers

    chart = Chart.load(CHART)

    def render(values: Values) -> dict[str, str]:
        chart.validate_schema(values)
        found = chart.render(values=values, name="stagelens", namespace="observability")
        return {path.removeprefix("stagelens/templates/"): text for path, text in found.items() if text.strip()}

    return render


@pytest.fixture(scope="session")
def manifests(rendered: Render) -> Manifests:
    made: dict[str, list[dict[str, Any]]] = {}

    def render(values: Values) -> list[dict[str, Any]]:
        key = json.dumps(values, sort_keys=True)
        if key not in made:
            texts = [text for path, text in rendered(values).items() if path != "NOTES.txt"]
            documents = [document for text in texts for document in yaml.load_all(text, yaml.CSafeLoader)]
            made[key] = [document for document in documents if document]
        return made[key]

    return render
