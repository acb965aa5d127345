"""The CI examples as plain shell: what their steps run, over a real service in a real repository, base and head."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import yaml

from stagelens.cli.comparison import read_thresholds
from tests.support.long_flush_path import LONG_FLUSH
from tests.support.ports import free_port

pytestmark = pytest.mark.stacks

EXAMPLES = Path(__file__).parents[2] / "examples" / "ci"
REQUESTS = "60"
# So few requests can tell.
LIMITS = "p50:+10%,stage:preprocess:p50:+5ms"
# Far beyond what a busy machine adds.
SLOWER_SECONDS = "0.1"


def github() -> tuple[dict[str, str], list[str], list[str]]:
    job = _read("github.yml")["jobs"]["latency"]
    steps = [step for step in job["steps"] if "run" in step]
    first = [step["run"] for step in steps if step.get("if") != "always()"]
    return job["env"], first, [step["run"] for step in steps if step.get("if") == "always()"]


def _read(name: str) -> dict[str, Any]:
    return yaml.safe_load((EXAMPLES / name).read_text())


def commands(steps: list[str]) -> list[list[str]]:
    return [shlex.split(line) for step in steps for line in step.replace("\\\n", " ").splitlines()]


@pytest.fixture
def repository(tmp_path: Path) -> tuple[Path, str]:
    folder = tmp_path / "checkout"
    (folder / "ci").mkdir(parents=True)
    shutil.copy(EXAMPLES / "service.py", folder)
    for name in ("measure.sh", "load.py"):
        shutil.copy(EXAMPLES / name, folder / "ci")
    (folder / "requirements.txt").touch()

    def git(*words: str) -> str:
        identity = ("-c", "user.name=ci", "-c", "user.email=ci@localhost")
        completed = subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True)
        return completed.stdout.strip()

    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "-m", "base")
    base = git("rev-parse", "HEAD")
    service = folder / "service.py"
    changed = service.read_text().replace("PREPROCESS_SECONDS = 0.001", f"PREPROCESS_SECONDS = {SLOWER_SECONDS}")
    assert changed != service.read_text()
    service.write_text(changed)
    git("commit", "--quiet", "-am", "head")
    return folder, base


def test_gitlab_runs_the_commands_of_github() -> None:
    variables, steps, _ = github()
    job = _read("gitlab.yml")["latency"]
    own = {"$CI_PROJECT_DIR/../base": "$RUNNER_TEMP/base", "$CI_MERGE_REQUEST_DIFF_BASE_SHA": "$BASE"}

    assert [[own.get(word, word) for word in words] for words in commands(job["script"])] == commands(steps)
    assert {key: value for key, value in job["variables"].items() if key != "GIT_DEPTH"} == {
        key: value for key, value in variables.items() if key != "BASE"
    }


def test_a_slower_head_does_not_pass_and_an_equal_one_does(repository: tuple[Path, str]) -> None:
    folder, base = repository
    variables, steps, always = github()
    assert read_thresholds(variables["LIMITS"])
    environment = _environment(folder, variables | {"BASE": base})

    codes = [_sh(step, folder, environment) for step in steps]
    after = [_sh(step, folder, environment) for step in always]

    assert codes == [0] * (len(steps) - 1) + [1]
    assert after == [0] * len(always)
    report = (folder / "latency.md").read_text()
    assert "preprocess" in report.splitlines()[0].casefold()
    failures = ET.parse(folder / "latency.xml").getroot().findall("testcase/failure")  # noqa: S314 - our own
    assert len(failures) == len(LIMITS.split(","))
    assert report in Path(environment["GITHUB_STEP_SUMMARY"]).read_text()
    saved = json.loads((folder / "base.json").read_text())
    assert saved["resourceMetrics"]

    shutil.copy(folder / "base.json", folder / "head.json")

    assert _sh(steps[-1], folder, environment) == 0


def _environment(folder: Path, variables: dict[str, str]) -> dict[str, str]:
    tools = folder.parent / "tools"
    tools.mkdir()
    pip = tools / "pip"
    pip.write_text("#!/bin/sh\nexit 0\n")
    pip.chmod(0o755)
    port = str(free_port())
    there = {key: value.replace("8000", port).replace(" 2000", f" {REQUESTS}") for key, value in variables.items()}
    path = os.pathsep.join((str(tools), str(Path(sys.executable).parent), os.environ["PATH"]))
    outside = {"RUNNER_TEMP": str(folder.parent)}
    summary = {"GITHUB_STEP_SUMMARY": str(folder.parent / "summary.md"), "MIN_REQUESTS": REQUESTS, "LIMITS": LIMITS}
    python = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), LONG_FLUSH])
    return {**os.environ, **there, **outside, **summary, "PATH": path, "PYTHONPATH": python}


def _sh(step: str, folder: Path, environment: dict[str, str]) -> int:
    done = subprocess.run(["sh", "-e", "-c", step], cwd=folder, env=environment, timeout=120, check=False)
    return done.returncode
