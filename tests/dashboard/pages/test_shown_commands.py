"""Commands that pages show work in a clone of Stagelens, and a button copies each."""

from __future__ import annotations

import html
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from stagelens.store import Series, Store
from tests.dashboard.rendering import client_of, write_requests

ROOT = Path(__file__).parents[3]
PAGES = ("/slo", "/events", "/engines", "/collectors", "/s/shop/capacity", "/incidents")


@pytest.fixture(scope="module")
def pages(open_module_store: Callable[[], Store]) -> dict[str, str]:
    store = open_module_store()
    client = client_of(store)
    shown = {"first run": client.get("/").text}
    write_requests(store, Series("shop", "1"))
    return shown | {path: client.get(path).text for path in PAGES}


def copied(page: str) -> list[str]:
    return [html.unescape(each) for each in re.findall(r'data-text="([^"]*)"', page)]


def test_every_command_has_a_button_that_copies_it(pages: dict[str, str]) -> None:
    for path, page in pages.items():
        blocks = re.findall(r'<pre class="code[^>]*>(.*?)</pre>', page, re.DOTALL)
        inline = re.findall(r"<code[^>]*>((?:stagelens|pip|make) .*?)</code>", page)

        assert {html.unescape(block) for block in blocks + inline} <= set(copied(page)), path
        assert not re.search(r">[^<`]*`[^<`]+`[^<]*<", page.partition("</head>")[2]), path
    assert len(copied(pages["first run"])) >= 5


def test_every_command_works_in_a_clone(pages: dict[str, str]) -> None:
    lines = {line for page in pages.values() for text in copied(page) for line in text.splitlines()}
    commands = {line for line in lines if re.match(r"(?:[A-Z_]+=\S+ )*(?:pip|make|stagelens) ", line)}
    readme = (ROOT / "README.md").read_text()
    for command in sorted(commands):
        words = [word for word in shlex.split(command) if not re.fullmatch(r"[A-Z_]+=.*", word)]
        if "fastapi" in words or "uvicorn" in words:
            assert command in readme, command
            continue
        programs = {
            "pip": [sys.executable, "-m", *words, "--dry-run", "--no-deps", "--no-build-isolation", "-q"],
            "make": ["make", "-n", *words[1:]],
            "stagelens": [sys.executable, "-m", "stagelens", *words[1:2], "--help"],
        }
        done = subprocess.run(programs[words[0]], cwd=ROOT, capture_output=True, text=True, check=False)

        assert done.returncode == 0, (command, done.stderr)
    assert {each.split()[0] for each in commands} >= {"pip", "make", "stagelens"}
