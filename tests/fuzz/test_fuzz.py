"""Whatever is sent, it is read or refused: a short part of what `make fuzz` does at length."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.targets import TARGETS

FOLDER = Path(__file__).parent
# What a long run found to reach code that nothing else reaches, or to break it once.
CORPUS = sorted(FOLDER.glob("corpus/*/*"))


def test_valid_inputs_are_parsed() -> None:
    for target in TARGETS.values():
        for data in target.seeds():
            target.check(data)


def test_the_corpus_is_parsed_or_refused() -> None:
    for path in CORPUS:
        TARGETS[path.parent.name].check(path.read_bytes())


@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=50, deadline=None)
@given(rng=st.randoms(use_true_random=False))
def test_mutated_inputs_are_parsed_or_refused(name: str, rng: random.Random) -> None:
    target = TARGETS[name]
    target.check(target.draw(rng))


@pytest.mark.soak
def test_a_short_fuzz_run_finds_no_failure(tmp_path: Path) -> None:
    options = (
        "--inputs",
        "2000",
        "--seed",
        "7",
        "--found",
        str(tmp_path),
        "--targets",
        "metrics_json",
        "traces_protobuf",
    )
    command = [sys.executable, "-m", "tests.fuzz", *options]
    done = subprocess.run(command, cwd=FOLDER.parents[1], check=False, capture_output=True, text=True)

    assert done.returncode == 0, done.stdout
