"""The wheel contains the whole package, and nothing else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
import zipfile
from pathlib import Path

import pytest

from tests.support.process_output import Printing

pytestmark = pytest.mark.stacks

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    files = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    for name in filter(None, files):
        if (ROOT / name).is_file():
            (folder / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "tree" / name).write_bytes((ROOT / name).read_bytes())
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(folder)]
    subprocess.run([*build, str(folder / "tree")], check=True)
    return next(folder.glob("*.whl"))


def test_the_wheel_contains_only_the_package(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()

    parts = {name.split("/")[1] for name in names if name.startswith("stagelens/")}
    data = [path for path in ROOT.glob("dashboard/assets/*") if path.is_file()]
    data += [*ROOT.glob("analysis/**/*.yaml"), *ROOT.glob("store/migrations/versions/0*.py")]
    data += [*ROOT.glob("alerts/**/*.html"), *ROOT.glob("dashboard/web/*.html")]

    modules = {path.relative_to(ROOT) for part in parts for path in (ROOT / part).rglob("*.py")}

    assert {f"stagelens/{path}" for path in modules} <= set(names)
    assert not parts & {"setup.py", "tests", "examples", "benchmarks", "helm", "docs"}
    assert {f"stagelens/{path.relative_to(ROOT)}" for path in data} <= set(names)
    licenses = {path.name for path in ROOT.glob("dashboard/assets/licenses/*")}
    assert licenses <= {Path(name).name for name in names if ".dist-info/licenses/" in name}
    hooks = {f"stagelens/{path.relative_to(ROOT)}" for path in ROOT.glob("instrumentors/**/sitecustomize.py")}
    assert {"stagelens/py.typed", *hooks} <= set(names)
    assert wheel.stat().st_size < 2_000_000


@pytest.mark.parametrize(
    "command", [["uv", "tool", "run", "--from"], ["pipx", "run", "--no-cache", "--spec"]], ids=["uvx", "pipx"]
)
def test_a_fresh_machine_runs_the_wheel_without_installing_it(wheel: Path, tmp_path: Path, command: list[str]) -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("STAGELENS_", "PYTHON"))}
    environment |= {"PATH": os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])}
    environment |= {"PIPX_HOME": str(tmp_path / "pipx"), "STAGELENS_DATABASE": f"sqlite:///{tmp_path / 'own.db'}"}
    environment |= {
        "STAGELENS_COLLECTOR_PORT": "0",
        "STAGELENS_COLLECTOR_GRPC_PORT": "0",
        "STAGELENS_DASHBOARD_PORT": "0",
    }
    up = Printing([*command, wheel, "stagelens", "up"], env=environment, cwd=tmp_path, start_new_session=True)
    try:
        address = up.wait_for(r"dashboard +(http://\S+)", seconds=240)[1]
        with urllib.request.urlopen(f"{address}/api/v1/names") as response:
            assert json.load(response) == {"services": []}
    finally:
        os.killpg(up.process.pid, signal.SIGKILL)
        up.process.wait()
