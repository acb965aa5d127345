"""Write the generated pages: `docs/libraries/`, and tables of other pages.

    python docs/generate.py    (or: make docs)

The texts come from docstrings and declarations. tests/test_docs.py fails if a page is not current.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from stagelens.core.settings import schema
from stagelens.core.settings.schema import Setting
from stagelens.core.stages import label, position
from stagelens.instrumentors.bootstrap import LIBRARIES
from stagelens.instrumentors.instrumentor import Instrumentor
from stagelens.instrumentors.libraries import server_reports

HERE = Path(__file__).parent
SETTINGS = {
    "agent": schema.AGENT,
    "server": (
        *schema.STORE,
        *schema.COLLECTOR,
        *schema.DASHBOARD,
        *schema.ALERTS,
        *schema.ALERT_METRICS,
        *schema.LOGS,
    ),
}
_TABLE = re.compile(r"(<!-- settings: (\w+) .*?-->\n).*?(<!-- end of settings -->)", re.DOTALL)
_DIALECTS = re.compile(r"(<!-- dialects .*?-->\n).*?(<!-- end of dialects -->)", re.DOTALL)
# Names of facts that are not clear by themselves.
_ATTRIBUTES = {
    "batch": "batch size",
    "first_token": "time to first token",
    "gap": "longest gap of a stream",
    "method": "HTTP method",
    "per_token": "time per token",
    "tokens": "input and output tokens",
    "tokens_in": "input tokens",
    "tokens_out": "output tokens",
}
_UNITS = {server_reports.S: "s", server_reports.MS: "ms", server_reports.NS: "ns"}
_NO_STAGE = {server_reports.TOTAL: "all of it", server_reports.TO_FIRST: "all of it up to the first token"}
NOTE = "<!-- Written by docs/generate.py from the module's own declarations. -->"


def pages() -> dict[str, str]:
    """Return the text of each page, by its path below `docs/`."""
    classes = {library.module: library.load() for library in LIBRARIES}
    known = sorted(classes.items(), key=lambda item: item[1].title.lower())
    texts = {f"libraries/{module}.md": "\n".join(_page(cls)) + "\n" for module, cls in known}
    return {
        "configuration.md": _TABLE.sub(_filled, (HERE / "configuration.md").read_text()),
        "reported.md": _DIALECTS.sub(_spoken, (HERE / "reported.md").read_text()),
        "libraries/README.md": "\n".join(_index(known)) + "\n",
        **texts,
    }


def _filled(table: re.Match[str]) -> str:
    """Return the table between two marks of a page, made anew."""
    rows = (_setting(setting) for setting in SETTINGS[table[2]])
    return "\n".join((table[1], "| variable | option | default | |", "|---|---|---|---|", *rows, "", table[3]))


def _setting(setting: Setting) -> str:
    variables = ", ".join(f"`{name}`" for name in setting.variable.split(", "))
    option = f"`{setting.option}`" if setting.option else ""
    default = setting.default if " " in setting.default or not setting.default else f"`{setting.default}`"
    return f"| {variables} | {option} | {default} | {setting.meaning} |"


def _spoken(table: re.Match[str]) -> str:
    """Return the table of what servers say of themselves, made anew."""
    rows = map(_dialect, (*server_reports.HEADERS, *server_reports.BODIES))
    return "\n".join((table[1], "| server | name | where | what |", "|---|---|---|---|", *rows, "", table[2]))


def _dialect(dialect: server_reports.ReportDialect) -> str:
    inside = (f"`{'.'.join(place)}`" if place else "itself" for place in dialect.places)
    where = f"body, {' or '.join(inside)}" if dialect.places else "headers"
    return f"| {dialect.title} | `{dialect.name}` | {where} | {'; '.join(map(_field, dialect.fields))} |"


def _field(field: server_reports.Field) -> str:
    stage = _NO_STAGE.get(field.stage) or f"`{field.stage}`"
    brief = f", `{field.brief}` below {server_reports.BRIEF_NS // server_reports.MS} ms" if field.brief else ""
    return f"`{field.name}` ({_UNITS[field.unit_ns]}): {stage}{brief}"


def _index(known: list[tuple[str, type[Instrumentor]]]) -> Iterator[str]:
    yield NOTE
    yield "# Libraries"
    yield ""
    yield "Stagelens times these libraries automatically. Start your service with `stagelens run -- …` or"
    yield "`opentelemetry-instrument …`, or call `stagelens.instrument()` first. For other code, add a line such as"
    yield '`with stagelens.stage("preprocess"):`.'
    yield ""
    yield "| library | stages |"
    yield "|---|---|"
    for module, cls in known:
        yield f"| [{cls.title}]({module}.md) | {_stages(cls)} |"


def _page(cls: type[Instrumentor]) -> Iterator[str]:
    module = sys.modules[cls.__module__]
    yield NOTE
    yield f"# {cls.title}"
    yield ""
    # The heading has the name of the library, which the docstring repeats.
    yield re.sub(r"\A[^:\n]+: (\w)", lambda found: found[1].upper(), inspect.cleandoc(module.__doc__ or ""))
    if cls.stages:
        yield ""
        yield "| stage | measured time |"
        yield "|---|---|"
        for stage in sorted(cls.stages, key=position):
            yield f"| `{stage}` {label(stage)} | {cls.stages[stage]} |"
    if cls.facts:
        yield ""
        yield f"Recorded attributes: {_listed(cls.facts)}."
    if cls.not_timed:
        yield ""
        yield "Not timed:"
        yield ""
        for item in cls.not_timed:
            yield f"- {item}"
    yield ""
    yield (
        f"Tested with {_tested(cls)}."
        if cls.tested
        else "Part of Python: tested with each supported version of Python."
    )


def _stages(cls: type[Instrumentor]) -> str:
    return ", ".join(f"`{stage}`" for stage in sorted(cls.stages, key=position)) or "none"


def _tested(cls: type[Instrumentor]) -> str:
    return ", ".join(f"{name} {version}" for name, version in cls.tested.items())


def _listed(words: Sequence[str]) -> str:
    return ", ".join(_ATTRIBUTES.get(word) or word.replace("_", " ") for word in words)


def main() -> None:
    """Write them."""
    for path, text in pages().items():
        (HERE / path).write_text(text)
    for path in sorted((HERE / "libraries").glob("*.md")):
        if f"libraries/{path.name}" not in pages():
            path.unlink()


if __name__ == "__main__":
    main()
