"""Sections of YAML files and settings of the environment: every error with its line, place, value and fix."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BeforeValidator, Field, StrictBool

from stagelens.core.errors import ConfigError
from stagelens.core.settings.field_types import (
    Amount,
    Duration,
    Entries,
    Moment,
    Port,
    Ratio,
    Secret,
    SecretAddress,
    Size,
    Text,
    Texts,
    WebAddress,
    WholeAmount,
)
from stagelens.core.settings.section import Fault, Section, Settings, read_section
from stagelens.core.settings.yaml_config import Document, parse


class Limit(Section):
    example = "name: checkout"

    name: Text = Field(examples=["checkout"])
    sender: Text | None = Field(default=None, alias="from", examples=["a@b.example"])
    window: Duration = Field(default=timedelta(days=30), examples=["30d"])
    kind: Literal["latency", "availability"] = "latency"
    objective: Ratio = Field(default=0.5, examples=["0.99"])
    price: Amount | None = Field(default=None, examples=["12.4"])
    replicas: WholeAmount | None = Field(default=None, examples=["4"])
    size: Size = Field(default=1, examples=["5MiB"])
    start: Moment | None = Field(default=None, examples=["2026-11-01T00:00Z"])
    labels: Texts = Field(default=(), examples=["[checkout]"])
    url: WebAddress | None = None
    enabled: StrictBool = False
    token: Secret = Field(default=Secret(), examples=["TOKEN"])
    weights: Entries[Amount] = Field(default={}, examples=["checkout: 3"])

    def faults(self) -> Iterator[Fault]:
        if self.window > timedelta(days=90):
            yield Fault("window", "is longer than 90d")
        if self.window < timedelta(days=7):
            yield Fault("window", "is shorter than 7d", is_warning=True)


class Top(Section):
    limits: Annotated[
        tuple[Limit, ...], BeforeValidator(lambda value: [value] if isinstance(value, dict) else value)
    ] = ()


def read(text: str, **context: Any) -> tuple[Top | None, Document]:
    document = parse(text)
    return read_section(Top, document, (), document.value, {"env": {}, "held": {}} | context), document


def problems(entry: str) -> list[str]:
    """Return the errors of one entry, written in one line, without the place of the entry."""
    _, document = read(f"limits:\n- {entry}\n")
    return [problem.text.replace("limits[0]", "it") for problem in document.problems]


def test_values_of_all_types_are_parsed() -> None:
    found, document = read(
        "limits:\n- {name: 1.0, from: a@b.example, window: 2w, objective: 0.99, price: 3, replicas: 4, size: 16MiB, "
        "start: 2026-11-01T00:00+01:00, labels: one, url: https://a.example, enabled: true, kind: }\n"
    )

    assert document.problems == document.warnings == []
    assert found is not None
    limit = found.limits[0]
    assert (limit.name, limit.sender, limit.kind, limit.url) == ("1.0", "a@b.example", "latency", "https://a.example")
    assert (limit.objective, limit.price, limit.replicas, limit.size) == (0.99, 3.0, 4, 16 * 1024**2)
    assert (limit.window, limit.start) == (timedelta(days=14), datetime(2026, 10, 31, 23, tzinfo=UTC))
    assert (limit.labels, limit.enabled, limit.token) == (("one",), True, Secret())


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("3", "it is 3; write keys and values, such as `name: checkout`"),
        ("{}", "it.name is missing; add `name: checkout`"),
        ("{name: x, labls: y}", "it.labls is not known; did you mean labels?"),
        ("{name: [x]}", "it.name is a list; write a text, such as checkout"),
        ("{name: x, from: true}", "it.from is True; write a text, such as a@b.example"),
        ("{name: x, window: 3}", "it.window is 3; write a number and a unit, such as 30d"),
        ("{name: x, window: 0d}", "it.window is '0d'; it must be longer than zero, such as 30d"),
        ("{name: x, window: 100d}", "it.window is longer than 90d"),
        ("{name: x, kind: latenc}", "it.kind is 'latenc'; write one of latency, availability; did you mean latency?"),
        ("{name: x, objective: 99.9}", "it.objective is 99.9; write a ratio between 0 and 1, such as 0.999"),
        ("{name: x, objective: 7000}", "it.objective is 7000; write a ratio between 0 and 1, such as 0.99"),
        ("{name: x, price: -1}", "it.price is -1; write a number above 0, such as 12.4"),
        ("{name: x, replicas: 1.5}", "it.replicas is 1.5; write a whole number, such as 4"),
        ("{name: x, size: 5}", None),
        ("{name: x, size: 0}", "it.size is 0; it must be greater than zero, such as 5MiB"),
        (
            "{name: x, size: big}",
            "it.size is 'big'; write a number and a unit (B, kB, MB, GB, KiB, MiB, GiB), such as 5MiB",
        ),
        (
            "{name: x, start: 2026-01-01}",
            "it.start is '2026-01-01', which has no zone; write a time with a zone, such as 2026-11-01T00:00Z",
        ),
        ("{name: x, labels: {a: b}}", "it.labels is a mapping; write texts, such as [checkout]"),
        ("{name: x, url: ftp://secret}", "it.url is not a web address; it starts with https://"),
        ("{name: x, enabled: 1}", "it.enabled is 1; write true or false"),
        ("{name: x, tokn_env: B}", "it.tokn_env is not known; did you mean token_env?"),
        ("{name: x, token_env: [B]}", "it.token is a list; write a text"),
        ("{name: x, weights: [3]}", "it.weights is a list; write keys and values, such as `checkout: 3`"),
        ("{name: x, weights: {1: 0, 2: }}", "it.weights.1 is 0; write a number above 0, such as 3"),
        ("{name: x, token: a, token_env: B}", "it.token is set twice; keep only token_env"),
    ],
)
def test_a_wrong_value_is_named_with_its_fix(entry: str, expected: str | None) -> None:
    assert problems(entry) == ([] if expected is None else [expected])


def test_all_errors_of_a_file_are_reported_with_their_lines() -> None:
    _, document = read("limits:\n- name: a\n  window: 1\n- {}\n- name: b\n  window: 91d\n  token_env: T\nother: 1\n")

    assert [(problem.line, problem.text) for problem in sorted(document.problems, key=lambda each: each.line)] == [
        (3, "limits[0].window is 1; write a number and a unit, such as 30d"),
        (4, "limits[1].name is missing; add `name: checkout`"),
        (6, "limits[2].window is longer than 90d"),
        (8, "other is not known; known keys are limits"),
    ]


def test_a_single_section_is_named_without_a_position() -> None:
    _, wrong = read("limits:\n  name: a\n  window: 91d\n")
    section, doubtful = read("limits:\n  name: a\n  window: 1d\n")

    assert [(each.line, each.text) for each in wrong.problems] == [(3, "limits.window is longer than 90d")]
    assert section is not None
    assert [(warning.line, warning.text) for warning in doubtful.warnings] == [(3, "limits.window is shorter than 7d")]


class WithSecret(Section):
    hook: SecretAddress = Field(examples=["HOOK"])


def secret(text: str, env: Mapping[str, str], held: dict[str, str] | None = None) -> tuple[Secret | None, Document]:
    document = parse(text)
    context = {"env": env, "held": {} if held is None else held}
    found = read_section(WithSecret, document, (), document.value, context)
    return found and found.hook, document


def test_a_secret_comes_from_the_file_the_environment_or_the_section(tmp_path: Path) -> None:
    path = tmp_path / "hook"
    path.write_text("https://hook.example\n")
    texts = ("hook: https://hook.example", "hook_env: HOOK", f"hook_file: {path}")
    found = [secret(text, {"HOOK": "https://hook.example"})[0] for text in texts]

    assert [each and each.value for each in found] == ["https://hook.example"] * 3
    assert "hook.example" not in repr(found)
    assert [each and (each.is_inline, each.file) for each in found] == [(True, None), (False, None), (False, path)]


def test_a_missing_secret_is_named() -> None:
    found = [secret(text, {})[0] for text in ("hook_env: HOOK", "hook_file: /no")]

    assert [each and each.lacking for each in found] == ["HOOK", "the file /no"]
    assert [each.text for each in secret("{}", {})[1].problems] == ["hook_env is missing; add `hook_env: HOOK`"]


def test_the_last_secret_of_a_file_is_used_while_it_is_empty(tmp_path: Path) -> None:
    path, held = tmp_path / "hook", dict[str, str]()
    path.write_text("https://hook.example")
    secret(f"hook_file: {path}", {}, held)
    path.write_text("")
    found, document = secret(f"hook_file: {path}", {}, held)

    assert found is not None
    assert (found.value, found.lacking) == ("https://hook.example", "")
    assert [warning.text for warning in document.warnings] == [
        f"hook_file names {path}, which is empty; the previous secret stays in use"
    ]


class Server(Settings):
    port: Port = Field(default=4318, validation_alias="STAGELENS_TEST_PORT", examples=["4318"])
    most: int = Field(default=10, validation_alias="STAGELENS_TEST_MOST", ge=1, le=99, examples=["10"])
    enabled: bool = Field(default=False, validation_alias="STAGELENS_TEST_ENABLED")
    limit: Size = Field(default=8, validation_alias="STAGELENS_TEST_LIMIT", examples=["8MiB"])


def test_settings_are_read_from_the_environment() -> None:
    env = {"STAGELENS_TEST_PORT": " 80", "STAGELENS_TEST_LIMIT": " ", "STAGELENS_TEST_ENABLED": "yes", "most": "20"}

    assert Server.from_env(env) == Server(port=80, enabled=True)


def test_all_wrong_settings_are_reported() -> None:
    with pytest.raises(ConfigError) as caught:
        Server.from_env(
            {
                "STAGELENS_TEST_PORT": "70000",
                "STAGELENS_TEST_MOST": "0",
                "STAGELENS_TEST_ENABLED": "perhaps",
                "STAGELENS_TEST_LIMIT": "much",
            }
        )

    assert str(caught.value).splitlines() == [
        "STAGELENS_TEST_PORT is '70000'; write at most 65535, such as 4318",
        "STAGELENS_TEST_MOST is '0'; write at least 1, such as 10",
        "STAGELENS_TEST_ENABLED is 'perhaps'; write true or false",
        "STAGELENS_TEST_LIMIT is 'much'; write a number and a unit (B, kB, MB, GB, KiB, MiB, GiB), such as 8MiB",
    ]
