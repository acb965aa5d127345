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

```text
stagelens 0.2.0
  alerts  …
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
<!-- file: a.txt -->
```text
no output
```

    make test
"""


def test_blocks_have_their_marks_commands_and_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "ROOT", tmp_path)
    path = tmp_path / "page.md"
    path.write_text(PAGE)
    found = list(blocks.blocks(path))

    assert [(block.line, block.language, block.mark, block.is_ours) for block in found] == [
        (4, "sh", "", True),
        (10, "text", "", False),
        (17, "console", "run by tests/e2e/test_cli.py", False),
        (23, "sh", "not run: needs a GPU", False),
        (27, "text", "file: a.txt", False),
    ]
    assert [block.commands for block in found] == [
        ["stagelens storage   # how large it is", "curl -s http://127.0.0.1:8600/api/v1/view?path=/"],
        [],
        ["stagelens check slo.yaml"],
        ["vllm serve"],
        [],
    ]
    assert list(blocks.unfenced(path)) == ["    make test"]
    expected = blocks.expected_output(found)
    assert expected == {found[0]: ["stagelens 0", "alerts …"]}
    for printed, is_expected in (("alerts  none", True), ("stagelens 12.3", True), ("stagelens 12.3 (quit)", False)):
        line = blocks.normalized(printed)
        assert any(blocks.matches(each, line) for each in expected[found[0]]) == is_expected


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("stagelens migrate --to postgresql://user@host/db  # all of it", {"migrate", "--to"}),
        ("stagelens run --save run.json -- uvicorn app:app --workers 2", {"run", "--save"}),
        ("KILLS=5 make chaos", {"chaos"}),
        ("curl -s -H 'A: b' 'https://stagelens.example.com/api/v1/query/latency?p=50'", {"latency"}),
        ('pip install "stagelens[postgres]"', set[str]()),
    ],
)
def test_the_required_words_of_a_command_exclude_values(command: str, words: set[str]) -> None:
    assert blocks.distinguishing(command) == words
