"""The engines that are known: one file each, in `engines/`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from importlib.resources import files

from ...core.errors import StagelensError
from ...core.settings import yaml_document
from ...core.settings.yaml_fields import Fields
from . import rules
from .rules import Engine, base_of


@cache
def engines() -> Mapping[str, Engine]:
    """Return every engine by its key.

    Raises:
        StagelensError: A file of ours is wrong.
    """
    found: dict[str, Engine] = {}
    for file in sorted((files(f"{__package__}") / "engines").iterdir(), key=lambda each: each.name):
        key = file.name.removesuffix(".yaml")
        document = yaml_document.parse(file.read_text(encoding="utf-8"))
        found[key] = rules.read(Fields(document, (), document.value, example="name: vLLM"), key)
        if document.problems:
            problem = document.problems[0]
            msg = f"{file.name}:{problem.line}: {problem.text}"
            raise StagelensError(msg)
    return found


def detect(samples: Collection[str]) -> list[Engine]:
    """Return the engines whose metrics are among *samples*, by the names of those."""
    bases = {base_of(name) for name in samples}
    return [engine for engine in engines().values() if not engine.wanted().isdisjoint(bases)]
