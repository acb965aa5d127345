"""Every command that the documentation shows was run: here, or by the test that the page names."""

from __future__ import annotations

import os
import re
import shutil
import threading
import time
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.docs.blocks import (
    REASONS,
    ROOT,
    Block,
    blocks,
    distinguishing,
    expected_output,
    matches,
    normalized,
    pages,
    unfenced,
)
from tests.docs.terminal import TIMEOUT_SECONDS, Terminal
from tests.support.long_flush_path import LONG_FLUSH
from tests.support.ports import free_port
from tests.support.real_servers import installed

pytestmark = pytest.mark.stacks

EXAMPLES = ROOT / "examples"
HERE = Path(__file__).parent
START = EXAMPLES / "start"
BLOCKS = [block for page in pages() for block in blocks(page)]
OURS: dict[str, list[Block]] = {}
for _block in BLOCKS:
    if _block.is_ours:
        OURS.setdefault(_block.page, []).append(_block)
EXPECTED = {
    block: lines
    for page in (ROOT / "README.md", *(ROOT / "docs" / "start").glob("*.md"))
    for block, lines in expected_output(list(blocks(page))).items()
}
# What pages say by themselves, and what servers take if nobody says.
SERVERS = (4317, 4318, 8600)
SERVICE = (8000, 8001, 8002)
# Stacks that do not get along with what the tests have installed; `make` puts each into a folder of its own.
BESIDE = {f"docs/start/{name}.md": name for name in ("kserve", "bentoml", "litserve", "triton", "vllm")}
BESIDE["docs/start/ray-serve.md"] = "ray"
# The only page about a service that the reader has already; its folders are in the reader's home.
YOUR_SERVICE = "docs/start/your-service.md"
# Pages without a program.
TEXTS = {"index", Path(YOUR_SERVICE).stem}
# Pages that are followed at once: half of the time is spent waiting for what is counted.
READERS = 4
POLL_SECONDS = 0.5
# A server prints that it has started within seconds after its port is open.
OUTPUT_SECONDS = 90
TAKING_IN = threading.Lock()


class World(NamedTuple):
    ports: dict[int, int]
    config: Path
    environment: dict[str, str]
    printed: Path

    def take_in(self, config: str) -> None:
        added: dict[str, Any] = yaml.safe_load(config)
        with TAKING_IN:
            file: dict[str, Any] = yaml.safe_load(self.config.read_text())
            file["rules"]["spans"] += added.get("rules", {}).get("spans", [])
            file["scrape"]["targets"] += added.get("scrape", {}).get("targets", [])
            # In one step: the server may read it at any moment.
            new = self.config.with_suffix(".new")
            new.write_text(yaml.safe_dump(file))
            new.replace(self.config)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Generator[World]:
    folder = tmp_path_factory.mktemp("up")
    ports: dict[int, int] = {server: free_port() for server in SERVERS}
    config = folder / "collector.yaml"
    config.write_text("rules: {spans: []}\nscrape: {targets: []}\n")
    environment = {
        "STAGELENS_COLLECTOR_CONFIG": str(config),
        "STAGELENS_COLLECTOR_GRPC_PORT": str(ports[4317]),
        "STAGELENS_COLLECTOR_PORT": str(ports[4318]),
        "STAGELENS_DASHBOARD_PORT": str(ports[8600]),
        "STAGELENS_EXPORT_INTERVAL": "1s",
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{ports[4318]}",
        "OTEL_BSP_SCHEDULE_DELAY": "500",
        # On a busy machine short requests exceed the budget, and would have no stages.
        "STAGELENS_OVERHEAD_BUDGET": "none",
        "PYTHONPATH": os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), LONG_FLUSH]),
        "HF_HUB_OFFLINE": "1",
        "BENTOML_HOME": str(folder / "bentoml"),
        "BENTOML_DO_NOT_TRACK": "True",
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        # Of 5 s and 10 s: on a busy machine the proxy is killed for being late.
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
        "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "60",
    }
    with Terminal(folder, {8600: ports[8600]}, environment) as terminal:
        terminal.type("python -m stagelens up")
        # Commands that read the database do so from other folders.
        environment |= {"STAGELENS_DATABASE": f"sqlite:///{folder}/stagelens.db"}
        yield World(ports, config, environment, terminal.printed[0])


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_every_block_has_a_language(block: Block) -> None:
    assert block.language, f"{block}: write ```sh for commands, ```console for a session, ```text for what is neither"


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_no_command_is_in_an_indented_block(page: Path) -> None:
    assert list(unfenced(page)) == []


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.commands and not block.is_ours], ids=str)
def test_unrun_commands_have_a_reason_or_another_test(block: Block) -> None:
    how, _, what = block.mark.partition(": " if block.mark.startswith("not run") else " by ")
    if how == "not run":
        assert what.partition(",")[0] in REASONS, f"{block}: {what!r} is none of {sorted(REASONS)}"
        return
    sources = [ROOT / name for name in what.split(", ")]

    assert [source for source in sources if not source.is_file()] == [], block
    text = "".join(source.read_text() for source in sources)
    for command in block.commands:
        missing = {word for word in distinguishing(command) if word not in text}

        assert not missing, f"{block}: {what} has no {missing} of `{command}`"


def test_every_start_has_a_program_and_vice_versa() -> None:
    starts = {page.stem for page in (ROOT / "docs" / "start").glob("*.md")} - TEXTS

    assert starts == {folder.name for folder in START.iterdir()}


@pytest.fixture(scope="module")
def followed(
    world: World, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Generator[dict[str, Future[None]]]:
    selected = {item.name for item in request.session.items}
    with ThreadPoolExecutor(READERS) as readers:
        yield {
            page: readers.submit(_follow, page, world, tmp_path_factory.mktemp("reader"))
            for page in OURS
            if f"{test_the_commands_of_a_page_work.__name__}[{page}]" in selected
        }


# vLLM alone takes a minute to start where nothing else runs.
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", OURS)
def test_the_commands_of_a_page_work(page: str, followed: dict[str, Future[None]]) -> None:
    followed[page].result()


def _follow(page: str, world: World, folder: Path) -> None:
    environment = world.environment | _beside(page)
    ports: dict[int, int] = {each: free_port() for each in SERVICE}
    environment |= {
        "UVICORN_PORT": str(ports[8000]),
        "GUNICORN_CMD_ARGS": f"--bind 127.0.0.1:{ports[8000]}",
        "TRITON_HTTP_PORT": str(ports[8000]),
        "TRITON_GRPC_PORT": str(ports[8001]),
        "TRITON_METRICS_PORT": str(ports[8002]),
        "RAY_SERVE_PORT": str(ports[8000]),
    }
    if page == YOUR_SERVICE:
        environment |= {"HOME": str(folder)}
        folder /= "stagelens"
    with Terminal(folder, world.ports | ports, environment) as terminal:
        for source, target in _furniture(page, folder):
            _furnish(terminal, source, target)
        if page.startswith("docs/start/"):
            for config in (folder / "examples").rglob("collector.yaml"):
                world.take_in(config.read_text())
        for block in OURS[page]:
            terminal.open_window()
            for command in block.commands:
                if "/api/v1/" in command:
                    _poll_output(terminal, command, block)
                else:
                    terminal.type(command)
            _check_output(block, [*terminal.printed, world.printed])


def _check_output(block: Block, printed: Sequence[Path]) -> None:
    deadline = time.monotonic() + OUTPUT_SECONDS
    while True:
        lines = [normalized(line) for path in printed for line in path.read_text().splitlines()]
        missing = [line for line in EXPECTED.get(block, ()) if not any(matches(line, other) for other in lines)]
        if not missing:
            return
        assert time.monotonic() < deadline, f"{block}: {missing} is not among\n" + "\n".join(lines)
        time.sleep(POLL_SECONDS)


def _poll_output(terminal: Terminal, command: str, block: Block) -> None:
    """Repeat *command* until its output has the stages and the lines that follow *block*, because counts arrive later."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while True:
        try:
            printed = terminal.type(command)
            missing = [stage for stage in _stages(block) if f'"{stage}"' not in printed]
            missing += [line for line in EXPECTED.get(block, ()) if not matches(line, normalized(printed))]
            assert not missing, f"$ {command}\n{printed}\nhas no {missing}"
        except AssertionError:
            if time.monotonic() > deadline:
                raise
            time.sleep(POLL_SECONDS)
        else:
            return


def _stages(block: Block) -> set[str]:
    after = (ROOT / block.page).read_text().splitlines()[block.line :]
    head = next((line for line in after if line.startswith("| percentile |")), "")
    return set(re.findall(r"`(\w+)`", head))


def _furniture(page: str, folder: Path) -> list[tuple[Path, Path]]:
    if page == YOUR_SERVICE:
        return [(START / "fastapi-torch", folder.parent / "my-service")]
    if page.startswith("docs/start/"):
        name = Path(page).stem
        return [(START / name, folder / "examples" / "start" / name)]
    first = [(START / "onnxruntime", folder / "examples" / "start" / "onnxruntime")] if page == "README.md" else []
    return [*first, *((source, folder) for source in (EXAMPLES, START / "opentelemetry", HERE / "reader"))]


def _furnish(terminal: Terminal, source: Path, target: Path) -> None:
    terminal.folder.mkdir(exist_ok=True)
    shutil.copy(ROOT / "pyproject.toml", terminal.folder)
    # The virtual environments that the page expects: activating one changes nothing, as with tests/docs/shims/python3.
    for place in {terminal.folder, target} - {terminal.folder / "examples" / "start" / target.name}:
        (place / ".venv" / "bin").mkdir(parents=True, exist_ok=True)
        (place / ".venv" / "bin" / "activate").touch()
    if not source.exists():
        return
    others = shutil.ignore_patterns("__pycache__", "start", "demo", "ci")
    shutil.copytree(source, target, dirs_exist_ok=True, ignore=others)
    for path in target.rglob("*"):
        if path.is_file():
            path.write_text(terminal.rewrite(path.read_text()))


def _beside(page: str) -> dict[str, str]:
    part = BESIDE.get(page)
    if part is None:
        return {}
    folder = installed(part)
    return {"PYTHONPATH": f"{folder}{os.pathsep}{LONG_FLUSH}", "PATH": str(folder / "bin")}
