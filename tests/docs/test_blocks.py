"""The parser of the documentation finds every block with its marks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs import blocks

PAGE = """
# A page

```sh
stagelens storage   # how large it is
curl -s \\
     http://127.0.0.1:8600/api/v1/view?path=/
```

1. In a list:
   <!-- run by tests/e2e/test_cli.py -->
   ```console
   $ stagelens check slo.yaml
   slo.yaml holds
   ```

<!-- not run: needs a GPU -->
```sh
vllm serve
```

<!-- of an earlier block -->
text between
```
nobody knows
```

    make test
"""


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(blocks, "ROOT", tmp_path)
    path = tmp_path / "page.md"
    path.write_text(PAGE)
    return path


def test_every_block_is_found_with_its_mark(page: Path) -> None:
    found = [(block.line, block.language, block.mark, block.is_ours) for block in blocks.blocks(page)]

    assert found == [
        (4, "sh", "", True),
        (12, "console", "run by tests/e2e/test_cli.py", False),
        (18, "sh", "not run: needs a GPU", False),
        (24, "", "", False),
    ]


def test_commands_are_distinguished_from_their_output(page: Path) -> None:
    shell, session, *_ = blocks.blocks(page)

    assert shell.commands == [
        "stagelens storage   # how large it is",
        "curl -s http://127.0.0.1:8600/api/v1/view?path=/",
    ]
    assert session.commands == ["stagelens check slo.yaml"]


def test_a_command_in_an_indented_block_is_found(page: Path) -> None:
    assert list(blocks.unfenced(page)) == ["    make test"]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("stagelens migrate --to postgresql://user@host/db  # all of it", {"migrate", "--to"}),
        ("stagelens run --save run.json -- uvicorn app:app --workers 2", {"run", "--save"}),
        ("KILLS=5 make chaos", {"chaos"}),
        (".venv/bin/python tests/chaos --kills=100", {"chaos", "--kills"}),
        ("curl -s -H 'A: b' 'https://stagelens.example.com/api/v1/query/latency?p=50'", {"latency"}),
        ('pip install "stagelens[postgres]"', set[str]()),
    ],
)
def test_the_required_words_of_a_command_exclude_values(command: str, words: set[str]) -> None:
    assert blocks.distinguishing(command) == words


def test_the_output_of_commands_is_the_text_after_them(page: Path) -> None:
    page.write_text(
        "```sh\nstagelens up\n```\n\n```text\nstagelens 0.2.0\n  alerts  …\n```\n\n"
        "```sh\ncat a.txt\n```\n<!-- file: a.txt -->\n```text\nno output\n```\n"
    )
    found = list(blocks.blocks(page))

    assert blocks.expected_output(found) == {found[0]: ["stagelens 0", "alerts …"]}


@pytest.mark.parametrize(
    ("printed", "is_expected"),
    [
        ("alerts    no SLO is evaluated: there is no slo.yaml", True),
        ("alerts", True),
        ("stagelens 12.34.5 (Press CTRL+C to quit)", False),
        ("stagelens 12.34.5", True),
    ],
)
def test_a_printed_line_matches_whatever_its_numbers(printed: str, is_expected: bool) -> None:
    expected = [blocks.normalized(line) for line in ("stagelens 0.2.0", "alerts …")]

    assert any(blocks.matches(line, blocks.normalized(printed)) for line in expected) == is_expected
