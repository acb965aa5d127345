"""Fenced blocks of the documentation: the commands of readers, and how they are tested.

A fence with `sh` is for a shell, one with `console` has commands after `$` and what they print; a fence with anything
else is none. Right before a block a comment may say who runs it instead of `test_commands.py`:

    <!-- run by tests/e2e/test_demo.py, tests/e2e/test_cli.py -->
    <!-- not run: needs a GPU -->

`python -m tests.docs.blocks` lists what nobody runs, and why.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent.parent
FENCE = re.compile(r"^(?P<indent> *)```(?P<language>[^\n]*)\n(?P<text>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"<!-- (?P<words>[^\n]*?) -->\s*\Z")
# Why a command may stay unrun, and nothing else.
REASONS = frozenset(
    {
        "needs a GPU",
        "needs a cluster",
        "needs a container engine",
        "needs programs and names of yours",
        "takes minutes",
        "once by hand",
    }
)
# Programs whose name tells nothing of what they are to do here; what does comes after it.
RUNNERS = frozenset({"make", "python", ".venv/bin/python", "stagelens"})


class Block(NamedTuple):
    page: str
    line: int
    language: str
    text: str
    mark: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def is_ours(self) -> bool:
        return bool(self.commands) and not self.mark.startswith(("run by ", "not run: "))

    @property
    def commands(self) -> list[str]:
        if self.language == "console":
            lines = [line[2:] for line in self.text.splitlines() if line.startswith("$ ")]
        else:
            lines = re.sub(r"\\\n\s*", "", self.text).splitlines() if self.language == "sh" else []
        return [line for line in lines if line.strip() and not line.lstrip().startswith("#")]


def pages() -> list[Path]:
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for found in FENCE.finditer(text):
        before = COMMENT.search(text[: found.start()])
        indent = len(found["indent"])
        yield Block(
            str(page.relative_to(ROOT)),
            text[: found.start()].count("\n") + 1,
            found["language"].strip(),
            "\n".join(line[indent:] for line in found["text"].splitlines()),
            before["words"] if before else "",
        )


def expected_output(of_page: Sequence[Block]) -> dict[Block, list[str]]:
    """Return for each block of commands the normalized lines of the `text` block that follows it as its output.

    A block that shows a file of the repository is no output.
    """
    return {
        block: [normalized(line) for line in after.text.splitlines() if line.strip()]
        for block, after in pairwise(of_page)
        if block.language == "sh" and after.language == "text" and not after.mark.startswith("file: ")
    }


def normalized(line: str) -> str:
    """Return *line* without what differs from run to run: numbers are 0, white space is one space.

    >>> normalized("OTLP/HTTP  http://127.0.0.1:4318")
    'OTLP/HTTP http://0:0'
    """
    return re.sub(r"\d+(?:[.,]\d+)*", "0", " ".join(line.split()))


def matches(expected: str, printed: str) -> bool:
    """Return whether the normalized line *printed* is *expected*, in which `…` stands for any text.

    >>> matches("alerts no SLO is evaluated: …", "alerts no SLO is evaluated: there is no slo.yaml")
    True
    """
    return re.fullmatch(".*".join(map(re.escape, re.split(" ?… ?", expected))), printed) is not None


def unfenced(page: Path) -> Iterator[str]:
    programs = r"(\$ |stagelens |make |pip |curl |python3? |\.venv/|helm |docker |kubectl )"
    for line in FENCE.sub("", page.read_text()).splitlines():
        if re.match(rf" {{4,}}{programs}", line):
            yield line


def distinguishing(command: str) -> set[str]:
    words = [word for word in shlex.split(command, comments=True) if not re.match(r"[A-Z_]+=", word)]
    program = words[0] if words else ""
    if program in ("pip", "export"):
        return set()
    if program == "curl":
        addresses = [re.sub(r"https?://[^/]*|\?.*", "", word) for word in words if word.startswith("http")]
        return {address.rpartition("/")[2] for address in addresses}
    # What follows is a command line of somebody else.
    own = words[: words.index("--")] if "--" in words else words
    options = {word.partition("=")[0] for word in own if word.startswith("--")}
    named = [word for word in own if not word.startswith("-") and word not in RUNNERS]
    # What is to be done: a command, a target, a script.
    return options | {word.rpartition("/")[2] for word in named[:1]}


if __name__ == "__main__":
    for _page in pages():
        for _block in blocks(_page):
            if _block.mark.startswith("not run: "):
                print(f"{_block}: {_block.mark}")
