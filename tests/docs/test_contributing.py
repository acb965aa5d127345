"""The worked examples of CONTRIBUTING.md: their tests pass, and their changes fit the files."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.docs.blocks import ROOT, Block, blocks

BLOCKS = list(blocks(ROOT / "CONTRIBUTING.md"))
# Extends the packages by the files of the examples, and registers the channel as the page does.
CONFTEST = """
import sys
from pathlib import Path

import stagelens.alerts.delivery.channels as channels
import stagelens.instrumentors.libraries as libraries
from tests.alerts.conftest import finding, message
from tests.instrumentors.conftest import finished, in_a_request, instrumented, no_agent

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
libraries.__path__.append(str(HERE / "instrumentors" / "libraries"))
channels.__path__.append(str(HERE / "alerts" / "delivery" / "channels"))

from stagelens.alerts.delivery.channels import ntfy

channels.KINDS["ntfy"] = ntfy.KIND
"""


def test_the_examples_pass_their_own_tests(tmp_path: Path) -> None:
    examples = [block for block in BLOCKS if block.language == "python"]
    for block in examples:
        file = tmp_path / path_in_first_line(block)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(block.text)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    tests = [str(tmp_path / path) for path in map(path_in_first_line, examples) if path.startswith("tests/")]
    options = ("--import-mode=importlib", "-p", "no:cacheprovider", "-p", "no:dash", "--rootdir", str(tmp_path))

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *options, *tests], cwd=ROOT, check=False, capture_output=True, text=True
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert len(tests) == 2


def test_the_changes_of_the_examples_fit_the_files() -> None:
    missing = [
        f"{block}: {line}"
        for block in BLOCKS
        if block.language == "diff"
        for line in block.text.splitlines()[1:]
        if line and not line.startswith("+") and line[1:] not in (ROOT / path_in_first_line(block)).read_text()
    ]

    assert missing == []


def path_in_first_line(block: Block) -> str:
    match = re.match(r"# ([\w/.]+)", block.text)
    assert match is not None, f"{block} does not start with the path of its file"
    return match[1].rstrip(":")
