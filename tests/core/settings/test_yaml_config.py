"""YAML parsing with line numbers and limits for aliases."""

from __future__ import annotations

import pytest

from stagelens.core.settings.yaml_config import parse

# A few lines of nested aliases that expand to ten thousand million values and would exhaust the memory.
LISTS = "\n".join(["l0: &l0 [x]", *(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]" for n in range(1, 11))])
MERGES = "\n".join(
    ["m0: &m0 {x: y}", *(f"m{n}: &m{n} {{<<: [{', '.join([f'*m{n - 1}'] * 10)}]}}" for n in range(1, 11))]
)


@pytest.mark.parametrize("bomb", [LISTS, MERGES], ids=["lists", "merges"])
def test_nested_aliases_are_refused(bomb: str) -> None:
    document = parse(bomb)

    assert [problem.text for problem in document.problems] == [
        "its aliases expand to more than 100,000 values; write plain lists and keys"
    ]
    assert document.value is None


@pytest.mark.parametrize("entries", [60_000, 200_000])
def test_a_file_with_too_many_values_says_so(entries: int) -> None:
    document = parse("slos:\n" + "  - {name: a, service: b}\n" * entries)

    assert [problem.text for problem in document.problems] == ["it has more than 100,000 values; write fewer entries"]


@pytest.mark.parametrize("number", ["9" * 5000, "-" + "9" * 400, "0x" + "f" * 5000, "0b" + "1" * 20_000])
def test_a_number_that_python_cannot_show_is_an_error(number: str) -> None:
    document = parse(f"a:\n  - 1\n  - {number}\nb: .inf\n")

    assert [(problem.line, problem.text) for problem in document.problems] == [
        (3, f"a[1] is a number with {len(number):,} digits; write at most 40")
    ]


def test_simple_aliases_are_resolved() -> None:
    document = parse("a: &a {x: 1}\nb: [*a, *a]\nc: {<<: *a, y: 2}\n")

    assert document.problems == []
    assert document.value == {"a": {"x": 1}, "b": [{"x": 1}, {"x": 1}], "c": {"x": 1, "y": 2}}
