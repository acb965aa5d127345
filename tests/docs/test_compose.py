"""The Docker Compose start: its file is valid, and the commands, environment and files of its containers work.

There is no container engine in the tests. Each container is a process here: with the environment of its image and of the
Compose file, with free ports for those of the container, and a temporary folder for its volume.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Generator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import pytest
import yaml

from tests.docs.blocks import ROOT, blocks
from tests.docs.terminal import Terminal
from tests.support.long_flush_path import LONG_FLUSH
from tests.support.ports import free_port

PAGE = ROOT / "docs" / "start" / "docker-compose.md"
EXAMPLE = ROOT / "examples" / "start" / "docker-compose"
COMPOSE: dict[str, Any] = yaml.safe_load((EXAMPLE / "compose.yaml").read_text())
SERVER, SERVICE = COMPOSE["services"]["stagelens"], COMPOSE["services"]["texts"]
# What the page shows, word by word. The containers are started where it says `docker compose`.
WRITE_DOTENV = 'echo "STAGELENS_DASHBOARD_TOKEN=$(openssl rand -hex 32)" > .env'
START = "docker compose up --build --detach --wait"
REQUESTS = "curl --retry 60 --retry-all-errors --retry-delay 1 -sf -o /dev/null 'http://127.0.0.1:8000/texts/[1-300]'"
BREAKDOWN = (
    'curl -sf -H "Authorization: Bearer $STAGELENS_DASHBOARD_TOKEN"'
    " 'http://127.0.0.1:8600/api/v1/query/breakdown?service=texts&p=50,90'"
)
ADDRESS = 'echo "http://127.0.0.1:8600/s/texts?token=$STAGELENS_DASHBOARD_TOKEN"'
COMMANDS = ["cd examples/start/docker-compose", WRITE_DOTENV, START, REQUESTS, ". ./.env", BREAKDOWN, ADDRESS]
STAGES = {"forward", "serialize", "network", "queue"}
PORTS = (4317, 4318, 8000, 8600, 9464)
TIMEOUT_SECONDS = 200
POLL_SECONDS = 0.3


def image(dockerfile: Path) -> tuple[dict[str, str], list[str]]:
    stage = re.sub(r"\\\n", " ", dockerfile.read_text()).rpartition("\nFROM ")[2]
    variables = " ".join(re.findall(r"(?m)^ENV (.*)", stage))
    words = [re.findall(rf"(?m)^{name} (\[.*\])", stage) for name in ("ENTRYPOINT", "CMD")]
    return (
        dict(re.findall(r'(\w+)="?([^"\s]*)', variables)),
        [word for found in words for each in found for word in json.loads(each)],
    )


class Containers:
    """The containers of the Compose file, as processes with free ports; a context manager that stops them."""

    def __init__(self, folder: Path, ports: Mapping[int, int]) -> None:
        self._folder = folder
        self._ports = ports
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def up(self, dotenv: Mapping[str, str]) -> None:
        server = self._environment(SERVER, image(ROOT / "Dockerfile")[0], dotenv)
        self._start("stagelens", image(ROOT / "Dockerfile")[1], server)
        # COPY docker/healthcheck.py /opt/stagelens/healthcheck.py
        check = [word.replace("/opt/stagelens", str(ROOT / "docker")) for word in SERVER["healthcheck"]["test"][1:]]
        assert check[0] == "python"
        self._wait(
            lambda: (
                subprocess.run([sys.executable, *check[1:]], env=server, capture_output=True, check=False).returncode
                == 0
            )
        )
        service, command = image(EXAMPLE / "Dockerfile")
        self._start("texts", command, self._environment(SERVICE, service, dotenv))
        self._wait(lambda: status(f"http://127.0.0.1:{self._ports[8000]}/texts/1") == 200)

    def _environment(
        self, container: dict[str, Any], of_image: dict[str, str], dotenv: Mapping[str, str]
    ) -> dict[str, str]:
        given = of_image | {name: str(value) for name, value in container.get("environment", {}).items()}
        given |= {name: re.sub(r"\$\{(\w+):\?[^}]*\}", lambda use: dotenv[use[1]], given[name]) for name in given}
        given |= {name: text.replace("/data/", f"{self._folder}/") for name, text in given.items()}
        # Names of services are names of hosts in the network of the containers.
        hosts = rf"http://({'|'.join(COMPOSE['services'])}):(\d+)"
        given |= {
            name: re.sub(hosts, lambda use: f"http://127.0.0.1:{self._ports[int(use[2])]}", text)
            for name, text in given.items()
        }
        own = {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), LONG_FLUSH]),
            "STAGELENS_COLLECTOR_PORT": str(self._ports[4318]),
            "STAGELENS_COLLECTOR_GRPC_PORT": str(self._ports[4317]),
            "STAGELENS_DASHBOARD_PORT": str(self._ports[8600]),
            "STAGELENS_ALERTS_METRICS_PORT": str(self._ports[9464]),
            "STAGELENS_EXPORT_INTERVAL": "1s",
            # On a busy machine short requests exceed the budget, and would have no stages.
            "STAGELENS_OVERHEAD_BUDGET": "none",
        }
        return given | own

    def _start(self, name: str, command: list[str], environment: dict[str, str]) -> None:
        assert command[0] == "stagelens"
        words = [str(self._ports.get(int(word), word)) if word.isdigit() else word for word in command[1:]]
        output = self._stack.enter_context((self._folder / f"{name}.log").open("wb"))
        process = subprocess.Popen(
            [sys.executable, "-m", "stagelens", *words], cwd=EXAMPLE, env=environment, stdout=output, stderr=output
        )
        self._stack.callback(process.wait, 60)
        self._stack.callback(process.terminate)

    def _wait(self, succeeds: Any) -> None:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not succeeds():
            logs = "".join(path.read_text() for path in self._folder.glob("*.log"))
            assert time.monotonic() < deadline, logs
            time.sleep(POLL_SECONDS)


def status(url: str) -> int:
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    try:
        with browser.open(url, timeout=10) as response:
            return response.status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def wait_for_stages(terminal: Terminal) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    printed = ""
    while not all(f'"{stage}"' in printed for stage in STAGES):
        assert time.monotonic() < deadline, printed
        time.sleep(POLL_SECONDS)
        # Without a request so far there is no such service, and curl fails.
        with contextlib.suppress(AssertionError):
            printed = terminal.type(BREAKDOWN)


@pytest.fixture
def ports() -> dict[int, int]:
    return {port: free_port() for port in PORTS}


@pytest.fixture
def containers(tmp_path: Path, ports: dict[int, int]) -> Generator[Containers]:
    (tmp_path / "data").mkdir()
    with Containers(tmp_path / "data", ports) as containers:
        yield containers


@pytest.mark.stacks
def test_the_compose_file_is_valid() -> None:
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run([*check, EXAMPLE / "compose.yaml"], check=False, capture_output=True, text=True)

    assert done.returncode == 0, done.stdout
    for container in (SERVER, SERVICE):
        build = container["build"]
        folders = [build["context"], *build.get("additional_contexts", {}).values()]
        assert [folder for folder in folders if not (EXAMPLE / folder).is_dir()] == []
    assert (EXAMPLE / SERVER["build"]["context"]).resolve() == ROOT
    assert (EXAMPLE / SERVICE["build"]["additional_contexts"]["clone"]).resolve() == ROOT
    assert "COPY --from=clone . " in (EXAMPLE / "Dockerfile").read_text()
    assert re.search(rf"(?m)^FROM \S+ AS {SERVER['build']['target']}$", (ROOT / "Dockerfile").read_text())


def test_ports_are_published_on_loopback_and_the_open_collector_is_not() -> None:
    published = [port for container in (SERVER, SERVICE) for port in container["ports"]]

    assert published == ["127.0.0.1:8600:8600", "127.0.0.1:8000:8000"]
    assert SERVICE["depends_on"] == {"stagelens": {"condition": "service_healthy"}}


@pytest.mark.stacks
def test_the_commands_of_the_page_work(
    tmp_path: Path, ports: dict[int, int], containers: Containers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("STAGELENS_DASHBOARD_TOKEN", raising=False)
    clone = tmp_path / "clone"
    (clone / "examples" / "start" / "docker-compose").mkdir(parents=True)
    shown = [command for block in blocks(PAGE) if block.mark.startswith("run by") for command in block.commands]
    assert shown == COMMANDS

    with Terminal(clone, ports, {}) as terminal:
        for command in (COMMANDS[0], WRITE_DOTENV):
            terminal.type(command)
        line = (clone / "examples" / "start" / "docker-compose" / ".env").read_text().strip()
        containers.up(dict([line.split("=", 1)]))
        terminal.type(REQUESTS)
        terminal.type(COMMANDS[4])
        wait_for_stages(terminal)
        address = terminal.type(ADDRESS).strip()

    assert status(address) == 200
    assert status(address.partition("?")[0]) == 401
