"""The packages of the server image, made by the steps of the Dockerfile (two minutes): their size and their bill of materials."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from tests.helm.test_image import run_stage

pytestmark = pytest.mark.soak

# 250 MB as registries count, compressed, less what the Docker registry says of its layers for python:3.11-slim-bookworm: below 50 MB.
MAX_BYTES = 200_000_000


@pytest.mark.timeout(900)
def test_the_server_image_is_below_250_megabytes_and_lists_its_packages(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    run_stage("wheel", tmp_path)
    run_stage("packages", tmp_path)
    with tarfile.open(tmp_path / "layer.tar.gz", "w:gz", compresslevel=6) as layer:
        layer.add(tmp_path / "opt" / "stagelens")
    size = (tmp_path / "layer.tar.gz").stat().st_size
    print(f"packages of the server image: {size / 1e6:.0f} MB compressed")

    assert size < MAX_BYTES
    bill = json.loads((tmp_path / "opt" / "stagelens" / "sbom.cdx.json").read_text(encoding="utf-8"))
    assert {"stagelens", "pandas", "clickhouse-connect"} <= {component["name"] for component in bill["components"]}
