"""Analysis of a command line: the interpreter, its flags and the program behind wrapper commands."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagelens.instrumentors.doctor.target import STARTERS, WRAPPERS, CommandTarget, find_target

PROGRAM = ["python", "-X", "dev", "-m", "uvicorn", "serve:app", "--workers", "2"]


def at(*words: str) -> CommandTarget:
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
    found = at(*words)

    assert (found.interpreter, found.flags, found.program, found.lost) == (words[0], flags, program, "")
    # Of -c the code is a word of its own.
    assert found.words[-len(arguments) or len(found.words) :] == arguments


def test_a_pip_script_names_its_interpreter() -> None:
    found = at(str(Path(sys.executable).parent / "uvicorn"), "serve:app")

    assert Path(found.interpreter).samefile(sys.executable)
    assert found.name == "uvicorn"
    assert found.words == ("serve:app",)


BEFORE = st.sampled_from(
    [
        ["nice", "-n", "5"],
        ["env", "-u", "A", "B=1"],
        ["C=2"],
        ["tini", "-g", "--"],
        ["timeout", "-s", "KILL", "60"],
        ["taskset", "-c", "0-3"],
        ["stdbuf", "-oL"],
        ["gosu", "app"],
        ["opentelemetry-instrument", "--traces_exporter", "console", "--service_name=checkout"],
        ["ddtrace-run"],
        ["poetry", "run"],
        ["conda", "run", "-n", "serving"],
        ["stagelens", "run", "--stage", "preprocess=serve:prepare", "--"],
        ["exec"],
    ]
)


@given(st.lists(BEFORE, max_size=6))
def test_wrapper_commands_before_the_program_are_skipped(before: list[list[str]]) -> None:
    words = [word for each in before for word in each]
    found, plain = at(*words, *PROGRAM), at(*PROGRAM)

    assert (found.interpreter, found.flags, found.program, found.words) == (
        plain.interpreter,
        plain.flags,
        plain.program,
        plain.words,
    )
    assert [*found.outer, *found.inner] == [*words, *PROGRAM]


@pytest.mark.parametrize(
    "script",
    [
        "exec python -m uvicorn serve:app",
        "set -e; cd /srv && python -m uvicorn serve:app",
        "python -m uvicorn serve:app || echo failed; exit 1",
        "if true; then\n  echo ready\nfi\nexec python \\\n  -m uvicorn serve:app",
    ],
)
def test_a_shell_is_read_up_to_its_last_command(tmp_path: Path, script: str) -> None:
    file = tmp_path / "entry.sh"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)

    for command in (["sh", "-c", script], [str(file)], ["bash", "-e", str(file)]):
        found = at(*command)

        assert (found.interpreter, found.program, found.words) == ("python", "uvicorn", ("serve:app",)), command


def test_a_start_script_passes_its_arguments(tmp_path: Path) -> None:
    file = tmp_path / "entry.sh"
    file.write_text('#!/bin/bash\nset -e\nexec "$@"\n')
    file.chmod(0o755)

    assert at(str(file), *PROGRAM).program == "uvicorn"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["sh", "-c", "python serve.py | tee log"], "cannot be parsed"),
        (["docker", "run", "image", "python"], "elsewhere"),
        (["nosuchprogram"], "there is no command nosuchprogram"),
        (["\u00fc" * 128], "there is no command"),
        (["nice", "-n", "5"], "contains no program"),
        (["uv", "run", ""], "contains no program"),
        (["sh", "/nosuchscript"], "cannot be read"),
        (["python"], "without a program"),
    ],
)
def test_an_undeterminable_command_is_explained(words: list[str], why: str) -> None:
    assert why in at(*words).lost


@given(
    st.lists(
        st.sampled_from(
            [
                "env",
                "sh",
                "-c",
                "python",
                "-",
                "A=1",
                "--",
                "uv",
                "run",
                "stagelens",
                "exec",
                "nice",
                "'",
                "$@",
                "",
                "&&",
            ]
        )
        | st.text(st.characters(exclude_characters="\0", codec="utf-8")),
        max_size=8,
    )
)
def test_any_command_line_is_analysed_without_an_error(words: list[str]) -> None:
    found = at(*words)

    assert found.lost or found.program


def test_every_wrapper_is_in_one_table() -> None:
    assert not WRAPPERS.keys() & STARTERS.keys()
