"""Analysis of a command line: the interpreter, its flags and the program behind wrapper commands."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagelens.instrumentors.doctor.target import CommandTarget, find_target

PROGRAM = ["python", "-X", "dev", "-m", "uvicorn", "serve:app", "--workers", "2"]


def target_of(*words: str) -> CommandTarget:
    return find_target(words, os.environ)


@pytest.mark.parametrize(
    ("words", "flags", "program", "arguments"),
    [
        (["python", "serve.py", "--port", "1"], (), "serve.py", ("--port", "1")),
        (["python3.12", "-I", "-u", "serve.py"], ("-I", "-u"), "serve.py", ()),
        (["/opt/bin/python", "-Im", "uvicorn", "serve:app"], ("-I",), "uvicorn", ("serve:app",)),
        (["python", "-W", "ignore", "-c", "import serve", "a"], ("-W", "ignore"), "-c", ("a",)),
        (["pypy3", "-m", "serve"], (), "serve", ()),
        (["python", "-Xpycache_prefix=/tmp/c", "serve.py"], ("-Xpycache_prefix=/tmp/c",), "serve.py", ()),
    ],
)
def test_python_options_end_at_the_program(
    words: list[str], flags: tuple[str, ...], program: str, arguments: tuple[str, ...]
) -> None:
    target = target_of(*words)

    assert (target.interpreter, target.flags, target.program, target.problem) == (words[0], flags, program, "")
    assert target.words == arguments


def test_a_pip_script_names_its_interpreter() -> None:
    target = target_of(str(Path(sys.executable).parent / "uvicorn"), "serve:app")

    assert Path(target.interpreter).samefile(sys.executable)
    assert target.name == "uvicorn"
    assert target.words == ("serve:app",)


BEFORE = st.sampled_from(
    [
        ["nice", "-n", "5"],
        ["env", "-u", "A", "B=1"],
        ["tini", "-g", "--"],
        ["timeout", "-s", "KILL", "60"],
        ["taskset", "-c", "0-3"],
        ["stdbuf", "-oL"],
        ["gosu", "app"],
        ["opentelemetry-instrument", "--traces_exporter", "console", "--service_name=checkout"],
        ["ddtrace-run"],
        ["poetry", "run"],
        ["uv", "run", "--python", "3.12"],
        ["conda", "run", "-n", "serving"],
        ["stagelens", "run", "--stage=preprocess=serve:prepare", "--"],
    ]
)


@given(st.lists(BEFORE, max_size=6))
def test_wrapper_commands_before_the_program_are_skipped(before: list[list[str]]) -> None:
    words = [word for wrapper in before for word in wrapper]
    target, plain = target_of(*words, *PROGRAM), target_of(*PROGRAM)

    assert (target.interpreter, target.flags, target.program, target.words) == (
        plain.interpreter,
        plain.flags,
        plain.program,
        plain.words,
    )
    assert [*target.prefix, *target.inner] == [*words, *PROGRAM]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["sh", "-c", "python serve.py | tee log"], "that sh starts"),
        (["docker", "run", "image", "python"], "that docker starts"),
        (["nosuchprogram"], "there is no command nosuchprogram"),
        (["\u00fc" * 128], "there is no command"),
        (["nice", "-n", "5"], "contains no program"),
        (["uv", "run", ""], "contains no program"),
        (["/bin/ls"], "is not a Python program"),
        (["python"], "without a program"),
    ],
)
def test_a_command_without_a_python_program_is_explained(words: list[str], problem: str) -> None:
    assert problem in target_of(*words).problem


def test_the_command_in_a_start_script_is_not_known(tmp_path: Path) -> None:
    file = tmp_path / "entry.sh"
    file.write_text('#!/bin/bash\nset -e\nexec "$@"\n')
    file.chmod(0o755)
    target = target_of(str(file), *PROGRAM)

    assert "entry.sh starts the program" in target.problem
    assert not target.is_certain


WORDS = ["env", "sh", "-c", "python", "-", "A=1", "--", "uv", "run", "stagelens", "nice", ""]


@given(st.lists(st.sampled_from(WORDS) | st.text(st.characters(exclude_characters="\0", codec="utf-8")), max_size=8))
def test_any_command_line_is_analysed_without_an_error(words: list[str]) -> None:
    target = target_of(*words)

    assert target.problem or target.program
