"""`make test K=…` and `make test-changed` run the tests they should."""

from __future__ import annotations

import subprocess
from pathlib import Path, PurePath

import pytest

from tests import selection

FILES = {
    "store/write.py": "",
    "store/read.py": "",
    "collector/points.py": "",
    "collector/rules.yaml": "",
    "tests/support/ports.py": "",
    "tests/support/servers.py": "from tests.support.ports import free_port",
    "tests/collector/conftest.py": "",
    "tests/collector/test_points.py": "from stagelens.collector import points\n\ndef test_a_point(): ...",
    "tests/collector/test_http.py": "from tests.support.servers import serve\n\nasync def test_a_body(): ...",
    "tests/store/test_write_twice.py": "import stagelens.store\n\ndef test_twice(): ...",
    "tests/dashboard/test_page.py": "from stagelens.collector.points import x\nRULES = 'rules.yaml'\n\ndef test_page(): ...",
}


def test_a_changed_file_has_the_tests_that_import_it_or_are_named_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(selection, "ROOT", tmp_path)
    monkeypatch.setattr(selection, "TESTS", tmp_path / "tests")
    expected = {
        "collector/points.py": {"test_points.py", "test_page.py"},
        "store/write.py": {"test_write_twice.py"},
        "store/read.py": set[str](),
        "collector/rules.yaml": {"test_page.py"},
        "tests/support/ports.py": {"test_http.py"},
        "tests/collector/conftest.py": {"test_points.py", "test_http.py"},
        "tests/dashboard/test_page.py": {"test_page.py"},
        "gone.py": set[str](),
    }

    assert {
        changed: {path.name for path in selection.belonging_to([PurePath(changed)])} for changed in expected
    } == expected
    assert {path.name for path in selection.with_word("POINT")} == {"test_points.py"}
    assert {path.name for path in selection.with_word("a_body")} == {"test_http.py"}


@pytest.mark.parametrize("target", ["test K=onnxruntime", "test-changed", "test-stacks K=chromium"])
def test_make_hands_the_choice_on(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MAKEFLAGS", raising=False)
    done = subprocess.run(
        ["make", "--dry-run", *target.split()],
        cwd=Path(__file__).parents[1],
        check=True,
        capture_output=True,
        text=True,
    )

    tier, words = ("stacks", "--word 'chromium'") if "stacks" in target else ("first", "")
    words = words or ("--changed main" if "changed" in target else "--word 'onnxruntime'")
    assert f"-m tests.selection --tier {tier} {words}\n" in done.stdout
