"""Pod settings as parsed by the readers in the code: with the mounted files and values in the Secrets."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from stagelens.alerts.config import AlertsConfig
from stagelens.analysis.costs import Costs
from stagelens.collector import check as collector_check
from stagelens.collector.config import CollectorConfig
from stagelens.dashboard.config import DashboardConfig
from tests.helm.given_values import EXAMPLES, Manifest, Manifests
from tests.support import command_line
from tests.support.certificate_authority import Authorities

pytestmark = pytest.mark.stacks

MOUNTED = "/etc/stagelens"
SECRET = "0123456789abcdef" * 4
NOW = datetime(2026, 11, 22, tzinfo=UTC)


@pytest.mark.parametrize("name", EXAMPLES)
def test_pod_settings_are_accepted_by_their_readers(  # noqa: PLR0917 - fixtures
    manifests: Manifests,
    name: str,
    tmp_path: Path,
    authority: Authorities,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = manifests(EXAMPLES[name])
    for pod in [each["spec"]["template"] for each in made if "template" in each.get("spec", {})]:
        container = pod["spec"]["containers"][0]
        root = tmp_path / pod["metadata"]["labels"]["app.kubernetes.io/component"]
        environment = laid_out(root, made, pod, authority)
        for key, value in environment.items():
            monkeypatch.setenv(key, value)
        command = container["args"][0]
        if command in ("up", "collector"):
            assert collector_check.main(environment) == 0, capsys.readouterr().err
        if command in ("up", "dashboard"):
            config = DashboardConfig.from_env(environment)
            assert config.signs_in
            # Behind an ingress all readers would have one address, which anybody's wrong guesses lock out.
            assert config.trusted_proxies or not [each for each in made if each["kind"] == "Ingress"]
            assert config.prices is None or Costs(config.prices, lambda: NOW).prices
        if (config := AlertsConfig.from_env(environment)).slo_file:
            assert command_line.run("check", config.slo_file) == 0, capsys.readouterr().out
        assert CollectorConfig.from_env(environment).retention.budget_bytes


def laid_out(root: Path, made: list[Manifest], pod: Manifest, authority: Authorities) -> dict[str, str]:
    """Mount what *pod* mounts below *root*, secrets with something in them, and return its environment, with such paths."""
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    maps = {each["metadata"]["name"]: each["data"] for each in made if each["kind"] == "ConfigMap"}
    container = pod["spec"]["containers"][0]
    here = str(root / MOUNTED.lstrip("/"))
    (root / "data").mkdir(parents=True)
    for mount in container["volumeMounts"]:
        folder = root / mount["mountPath"].lstrip("/")
        folder.mkdir(parents=True, exist_ok=True)
        volume = volumes[mount["name"]]
        for file, text in maps.get(volume.get("configMap", {}).get("name", ""), {}).items():
            (folder / file).write_text(text.replace(MOUNTED, here))
        if mount["name"] == "tls":
            certificate = authority("stagelens").sign("stagelens-collector")
            sources = {
                "tls.crt": certificate.certificate,
                "tls.key": certificate.key,
                "ca.crt": authority("stagelens").file,
            }
            for file, source in sources.items():
                (folder / file).write_bytes(source.read_bytes())
        elif "secret" in volume:
            # Which keys it has is not to be seen in a rendering: those that files name.
            everything = " ".join(text for texts in maps.values() for text in texts.values())
            for key in re.findall(rf"{mount['mountPath']}/([\w.-]+)", everything):
                (folder / key).write_text(f"{SECRET}-{key}")

    def value_of(variable: Manifest) -> str:
        if "value" in variable:
            return variable["value"].replace(MOUNTED, here).replace("sqlite:////data", f"sqlite:///{root}/data")
        key = variable["valueFrom"]["secretKeyRef"]["key"]
        known = {
            "database": f"sqlite:///{root}/data/stagelens.db",
            "points": "clickhousedb://user:password@host/stagelens",
        }
        return known.get(key, f"https://example.com/{SECRET}" if variable["name"].endswith("_URL") else SECRET)

    return {variable["name"]: value_of(variable) for variable in container["env"]}
