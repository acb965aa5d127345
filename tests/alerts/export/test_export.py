"""`stagelens export`: output files and errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from stagelens.__main__ import main

SLO = "slos: [{name: checkout, service: shop, objective: 0.99, threshold: 250ms, window: 30d}]\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "slo.yaml").write_text(SLO)
    return tmp_path


def test_rules_are_written_to_stdout_or_a_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    codes = main(["export", "rules"]), main(["export", "rules", "--slo", "slo.yaml", "-o", "rules.yml"])
    shown = capsys.readouterr().out

    assert codes == (0, 0)
    assert shown == (folder / "rules.yml").read_text()
    assert [group["name"] for group in yaml.safe_load(shown)["groups"]] == ["stagelens-slo-checkout"]


def test_an_option_selects_native_histograms(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["rules"], ["rules", "--native"], ["grafana"], ["grafana", "--native"]):
        assert main(["export", *words]) == 0
        text = capsys.readouterr().out
        assert words[0] == "rules" or json.loads(text)["uid"] == "stagelens"
        assert ("stagelens_request_duration_seconds_bucket" in text) == ("--native" not in words)


def test_an_unwritable_output_file_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["export", "grafana", "-o", "no/such/folder.json"])

    assert code == 1
    assert "no/such/folder.json cannot be written (No such file or directory); name another" in capsys.readouterr().err
