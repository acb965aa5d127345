"""Rendered objects of the chart, by the real Helm engine: valid, and equal to the golden files."""

from __future__ import annotations

import difflib
import functools
import os
import re
from pathlib import Path

import kubernetes_validate.utils
import pytest
import yaml
from helm_python import chart

from tests.helm.given_values import CHART, EXAMPLES, HELM, Manifests, Render

pytestmark = pytest.mark.stacks

GOLDENS = Path(__file__).parent / "goldens"
# The first one the chart is for, and the last one there are schemas of.
KUBERNETES = ("1.27", "1.37")


# Their own objects have no schema here; the golden files show them.
OPERATORS = {"ServiceMonitor", "PrometheusRule", "Instrumentation"}


@pytest.fixture(scope="module", autouse=True)
def schemas_read_once() -> None:
    """Their files have 1.5 MB, and there is no other way to keep them."""
    kubernetes_validate.utils.schema_contents = functools.cache(kubernetes_validate.utils.schema_contents)


@pytest.mark.parametrize("name", EXAMPLES)
def test_helm_lint_passes(name: str) -> None:
    report = chart.lint(CHART, EXAMPLES[name], strict=True)

    assert report["errors"] == []
    assert [found["error"] for found in report["messages"]] == ["icon is recommended"]


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_object_is_valid_for_kubernetes(manifests: Manifests, name: str) -> None:
    made = manifests(EXAMPLES[name])

    assert made
    for manifest in made:
        for version in KUBERNETES if manifest["kind"] not in OPERATORS else ():
            kubernetes_validate.utils.validate(manifest, version, strict=True)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_chart_renders_like_the_golden_files(rendered: Render, name: str) -> None:
    found = "\n".join(f"# {path}\n{text.strip()}\n" for path, text in sorted(rendered(EXAMPLES[name]).items()))
    golden = GOLDENS / f"{name}.yaml"
    if os.environ.get("STAGELENS_GOLDENS") == "accept":
        GOLDENS.mkdir(exist_ok=True)
        golden.write_text(found)
    before = golden.read_text() if golden.exists() else ""
    changed = list(difflib.unified_diff(before.splitlines(), found.splitlines(), "accepted", "rendered", lineterm=""))

    assert not changed, "\n".join([*changed, "accept it with STAGELENS_GOLDENS=accept"])


def test_golden_files_belong_to_existing_examples() -> None:
    assert {path.stem for path in GOLDENS.glob("*.yaml")} == set(EXAMPLES)


def test_the_proxy_removes_forwarded_paths_of_visitors() -> None:
    (proxy,) = EXAMPLES["oidc"]["dashboard"]["sidecars"]
    options = {argument.partition("=")[0] for argument in proxy["args"]}

    assert "--skip-auth-route" in options
    assert "--reverse-proxy" not in options


PAGES = ("../../docs/kubernetes.md", "README.md", "values.yaml", "templates/_checks.tpl", "templates/NOTES.txt")


@pytest.mark.parametrize("page", PAGES)
def test_documented_values_exist(page: str) -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    named = re.findall(r"(?<![\w./$-])([a-zA-Z]+(?:\.\w+)+)(?!\w|/|\.\w)", (CHART / page).read_text())
    paths = [name.split(".") for name in named]
    for top, *path in [each for each in paths if each[0] in values and each[-1] not in {"yaml", "md"}]:
        found = values[top]
        for key in path:
            assert key in found, f"{'.'.join([top, *path])} is in {page}, and no value"
            found = found[key]


def test_the_chart_is_of_the_version_it_installs(tmp_path: Path) -> None:
    package = chart.package(CHART, destination=tmp_path)
    pyproject = (HELM.parent / "pyproject.toml").read_text()
    metadata = chart.Chart.load(package).metadata

    assert f'version = "{metadata["appVersion"]}"' in pyproject
    assert metadata["version"] == metadata["appVersion"]
