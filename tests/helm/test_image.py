"""The images, as far as they can be tried without an engine for containers: their files, and the steps that make them."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tomllib
import urllib.request
import venv
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from importlib.metadata import distribution, requires, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from stagelens.cli.servers import SERVERS
from stagelens.collector.serve import Collector, CollectorConfig
from stagelens.store import Selection, Store
from tests.support.long_flush_path import LONG_FLUSH
from tests.support.serving import serving

pytestmark = pytest.mark.stacks

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
# What reaches a build: the names .dockerignore lets in.
CONTEXT = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
PINNED = {
    canonicalize_name(line.partition("==")[0]): line.partition("==")[2]
    for line in (ROOT / "docker" / "constraints.txt").read_text().splitlines()
    if "==" in line
}
# Where the OpenTelemetry Operator mounts what it copied, below the root of the container, and what it sets.
# https://github.com/open-telemetry/opentelemetry-operator, internal/instrumentation/python.go
MOUNT = "otel-auto-instrumentation-python"
SERVICE = """
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
app = Starlette(routes=[Route("/", lambda request: PlainTextResponse("done"))])
"""


def steps(stage: str) -> Iterator[tuple[str, str]]:
    text = re.sub(r"\\\n", " ", re.sub(r"(?m)^\s*#.*\n", "", DOCKERFILE))
    body = re.split(rf"(?m)^FROM \S+ AS {stage}$", text)[1]
    for line in re.split(r"(?m)^FROM ", body)[0].splitlines():
        word, _, rest = line.partition(" ")
        if word:
            yield word, rest


def run_stage(stage: str, root: Path) -> None:
    def here(text: str) -> str:
        return re.sub(r"(?<![\w.])/(src|wheels|autoinstrumentation|opt)\b", rf"{root}/\1", text)

    pip = f"{shlex.quote(sys.executable)} -m pip --quiet "
    arguments: dict[str, str] = {}
    for word, rest in steps(stage):
        if word == "RUN":
            command = re.sub(r"(?<![\w/-])pip ", pip, here(rest), count=1)
            subprocess.run(["bash", "-euc", command], cwd=root / "src", env=os.environ | arguments, check=True)
        elif word == "ARG":
            name, _, value = rest.partition("=")
            arguments[name] = value
        elif word == "COPY" and not rest.startswith("--from"):
            *sources, target = rest.split()
            for name in CONTEXT if sources == ["."] else sources:
                copy(
                    ROOT / name,
                    Path(here(target)) / ("" if sources != ["."] else name) if target != "." else root / "src" / name,
                )


def copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    elif source.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)


@pytest.fixture(scope="module")
def autoinstrumentation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("image")
    (root / "src").mkdir()
    run_stage("wheel", root)
    run_stage("autoinstrumentation", root)
    return root / "autoinstrumentation"


@pytest.fixture
def workload(autoinstrumentation: Path, tmp_path: Path) -> Callable[..., dict[str, str]]:
    """Copies that folder as the operator's init container does; returns what the operator sets in the workload."""

    def inject(**variables: str) -> dict[str, str]:
        target = tmp_path / MOUNT
        target.mkdir()
        subprocess.run(["cp", "-r", f"{autoinstrumentation}/.", str(target)], check=True)
        path = f"{target}/opentelemetry/instrumentation/auto_instrumentation:{target}"
        otel = {
            "OTEL_SERVICE_NAME": "checkout",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_TRACES_EXPORTER": "otlp",
        }
        return {"PATH": os.environ["PATH"], "PYTHONPATH": path, **otel, **variables}

    return inject


@pytest.fixture
def plain_python(tmp_path: Path) -> str:
    venv.create(tmp_path / "plain", with_pip=False)
    site = next((tmp_path / "plain" / "lib").glob("python*/site-packages"))
    for name in ("uvicorn", "click", "h11", "starlette", "anyio", "idna", "typing_extensions"):
        for top in {Path(str(file)).parts[0] for file in distribution(name).files or ()} - {"..", "__pycache__"}:
            (site / top).symlink_to(Path(str(distribution(name).locate_file(top))))
    return str(tmp_path / "plain" / "bin" / "python")


@pytest.mark.parametrize(
    "words", [["Dockerfile"], ["examples/start/docker-compose/Dockerfile", "--ignore", "DL3013", "--ignore", "DL3022"]]
)
def test_the_dockerfiles_are_clean(words: list[str]) -> None:
    hadolint = Path(sys.executable).parent / "hadolint"
    found = subprocess.run([hadolint, *words], cwd=ROOT, capture_output=True, text=True, check=False)

    assert (found.returncode, found.stdout) == (0, "")


def test_the_image_runs_an_existing_command_as_an_unprivileged_user() -> None:
    server = dict(steps("server"))

    assert server["ENTRYPOINT"] == '["stagelens"]'
    assert re.findall(r'"(\w+)"', server["CMD"])[0] in SERVERS
    assert server["USER"] == "10001:10001"


def test_images_have_a_version_label() -> None:
    versions = [
        rest for stage in ("instrumentation", "server") for _, rest in steps(stage) if rest.startswith("VERSION=")
    ]

    assert versions == [f"VERSION={PROJECT['project']['version']}"] * 2


def test_pinned_versions_satisfy_the_package_requirements() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    asked = [*PROJECT["project"]["dependencies"], *extras["server"], *extras["postgres"], *extras["clickhouse"]]
    waiting, seen = [Requirement(each) for each in asked], set[str]()
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        assert name in PINNED, f"{requirement} is not in docker/constraints.txt"
        assert requirement.specifier.contains(PINNED[name]), requirement
        # What is installed here is not always what is pinned: of another version other things may be needed.
        if str(requirement) in seen or version(name) != PINNED[name]:
            continue
        seen.add(str(requirement))
        waiting += [each for each in map(Requirement, requires(name) or ()) if is_for_image(each, requirement.extras)]


def is_for_image(requirement: Requirement, extras: set[str]) -> bool:
    python = re.findall(r"(?m)^ARG PYTHON_IMAGE=python:([\d.]+)", DOCKERFILE)[0]
    here = {"python_version": python, "python_full_version": f"{python}.0"}
    return requirement.marker is None or any(
        requirement.marker.evaluate(here | {"extra": each}) for each in {"", *extras}
    )


def test_requests_of_a_plain_service_arrive(
    workload: Callable[..., dict[str, str]], plain_python: str, tmp_path: Path
) -> None:
    (tmp_path / "service.py").write_text(SERVICE)
    store = Store.open(f"sqlite:///{tmp_path / 'store.db'}")
    with serving(Collector(CollectorConfig(port=0), store)) as url, socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        command = [plain_python, "-m", "uvicorn", "service:app", "--fd", str(listening.fileno())]
        environment = workload(OTEL_EXPORTER_OTLP_ENDPOINT=url)
        environment["PYTHONPATH"] += f"{os.pathsep}{LONG_FLUSH}"
        service = subprocess.Popen(command, cwd=tmp_path, env=environment, pass_fds=[listening.fileno()])
        bodies = [urllib.request.urlopen(f"http://127.0.0.1:{port}/").read() for _ in range(5)]
        service.send_signal(signal.SIGTERM)
        service.wait(timeout=60)
    now = datetime.now(UTC)
    found = store.read.latency(Selection(now - timedelta(hours=1), now + timedelta(minutes=1), service="checkout"))
    store.close()

    assert bodies == [b"done"] * 5
    assert found.count == 5


def test_packages_of_the_workload_have_priority(
    workload: Callable[..., dict[str, str]], plain_python: str, tmp_path: Path
) -> None:
    site = next((tmp_path / "plain" / "lib").glob("python*/site-packages"))
    (site / "typing_extensions.py").unlink()
    (site / "typing_extensions.py").write_text("OWN = True\n")
    (site / "sitecustomize.py").write_text("print('theirs')\n")
    code = "import typing_extensions, stagelens, sys; print(typing_extensions.OWN, stagelens.__file__.split('/')[-3])"
    completed = subprocess.run([plain_python, "-c", code], env=workload(), capture_output=True, text=True, check=True)

    assert completed.stdout.splitlines() == ["theirs", f"True {MOUNT}"]


def test_an_incompatible_workload_runs_and_logs_it(
    workload: Callable[..., dict[str, str]], plain_python: str, tmp_path: Path
) -> None:
    environment = workload()
    (tmp_path / MOUNT / "stagelens" / "__init__.py").write_text("raise ImportError('too old')\n")
    code = "import subprocess, sys; print('works', flush=True); subprocess.run([sys.executable, '-c', 'print(1)'])"
    completed = subprocess.run([plain_python, "-c", code], env=environment, capture_output=True, text=True, check=True)

    assert completed.stdout.split() == ["works", "1"]
    assert len(re.findall("nothing is timed", completed.stderr)) == 1
