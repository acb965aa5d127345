"""Write the pages of the libraries, and the generated regions of the other pages.

    python docs/generate.py    (or: make docs)

A region lies between `<!-- NAME: ARGUMENT (…) -->`, where the argument and the remark may be missing, and `<!-- end of NAME -->`.
`_REGIONS` has the function that writes it, from docstrings, declarations and files. tests/test_docs.py fails if a page is not
current.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
import textwrap
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

import stagelens
from stagelens.core.settings import schema
from stagelens.core.settings.schema import Setting
from stagelens.core.stages import STAGES, label, position
from stagelens.instrumentors.bootstrap import LIBRARIES, Library
from stagelens.instrumentors.instrumentor import Instrumentor
from stagelens.instrumentors.libraries import server_reports

HERE = Path(__file__).parent
ROOT = HERE.parent
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
_REGION = re.compile(r"(<!-- (\w+)(?:: (\S+))?[^\n]*-->\n).*?(<!-- end of \2 -->)", re.DOTALL)
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
# Language of a code block by the name of its file; `text` for others.
_LANGUAGES = {".py": "python", ".yaml": "yaml", ".json": "json", "Dockerfile": "dockerfile"}
_UNITS = {server_reports.S: "s", server_reports.MS: "ms", server_reports.NS: "ns"}
_NO_STAGE = {server_reports.TOTAL: "total", server_reports.TO_FIRST: "total up to the first token"}
NOTE = "<!-- docs/generate.py -->"


def pages() -> dict[str, str]:
    """Return the text of each page, by its path below `docs/`."""
    libraries = {f"libraries/{module}.md": "\n".join(_page(cls)) + "\n" for module, cls in _classes()}
    others = {path.relative_to(HERE).as_posix(): path.read_text() for path in sorted(HERE.rglob("*.md"))}
    filled = {path: _REGION.sub(_filled, text) for path, text in others.items() if _REGION.search(text)}
    return filled | libraries


def _filled(region: re.Match[str]) -> str:
    write = _REGIONS.get(region[2])
    if write is None:
        return region[0]
    # A file is one block; tables stand alone.
    margin = "" if region[2] == "file" else "\n"
    return "\n".join((f"{region[1]}{margin}".removesuffix("\n"), *write(region[3] or ""), f"{margin}{region[4]}"))


def _table(head: str, rows: Iterable[str]) -> Iterator[str]:
    yield from (head, "|---" * (head.count("|") - 1) + "|", *rows)


def _classes() -> list[tuple[str, type[Instrumentor]]]:
    classes = {_page_name(library): library.load() for library in LIBRARIES}
    return sorted(classes.items(), key=lambda item: item[1].title.lower())


def _file(name: str) -> Iterator[str]:
    path = ROOT / name
    language = _LANGUAGES.get(path.suffix or path.name, "text")
    yield f"```{language}\n{path.read_text()}```"


def _settings(part: str) -> Iterator[str]:
    return _table("| variable | option | default | meaning |", map(_setting, SETTINGS[part]))


def _setting(setting: Setting) -> str:
    variables = ", ".join(f"`{name}`" for name in setting.variable.split(", "))
    option = f"`{setting.option}`" if setting.option else ""
    default = setting.default if " " in setting.default or not setting.default else f"`{setting.default}`"
    return f"| {variables} | {option} | {default} | {setting.meaning} |"


def _dialects(_: str) -> Iterator[str]:
    dialects = (*server_reports.HEADERS, *server_reports.BODIES)
    return _table("| server | dialect | place | field (unit): its stage |", map(_dialect, dialects))


def _dialect(dialect: server_reports.ReportDialect) -> str:
    inside = (f"`{'.'.join(place)}`" if place else "top level" for place in dialect.places)
    where = f"body, {' or '.join(inside)}" if dialect.places else "headers"
    if headers := [header for header in server_reports.HEADERS if dialect.places and header.name == dialect.name]:
        prefix = headers[0].fields[0].name.removesuffix(dialect.fields[0].name)
        return f"| {dialect.title} | `{dialect.name}` | {where} | the header fields without `{prefix}` |"
    # Fields with the name of their stage share one text.
    same = [field for field in dialect.fields if field.name == field.stage and field.stage not in _NO_STAGE]
    named = (
        [f"{', '.join(f'`{field.name}`' for field in same)} ({_UNITS[same[0].unit_ns]}): stage of that name"]
        if same
        else []
    )
    others = [_field(field) for field in dialect.fields if field not in same]
    return f"| {dialect.title} | `{dialect.name}` | {where} | {'; '.join((*named, *others))} |"


def _field(field: server_reports.Field) -> str:
    stage = _NO_STAGE.get(field.stage) or f"`{field.stage}`"
    brief = f", or `{field.brief}` below {server_reports.BRIEF_NS // server_reports.MS} ms" if field.brief else ""
    return f"`{field.name}` ({_UNITS[field.unit_ns]}): {stage}{brief}"


def _libraries(_: str) -> Iterator[str]:
    rows = (f"| [{cls.title}]({module}.md) | {_stages(cls)} |" for module, cls in _classes())
    return _table("| library | stages |", rows)


def _software(_: str) -> Iterator[str]:
    stacks: list[dict[str, Any]] = yaml.safe_load((HERE / "libraries" / "stacks.yaml").read_text())
    rows = (
        f"| {stack['name']} | {_version(stack)} | {stack['measured']} | `{stack['test']}`{', `make soak`' * ('soak' in stack)} |"
        for stack in stacks
        if "test" in stack
    )
    yield from _table("| software | version | measured by | test |", rows)
    yield f"\nNo test runs {_listed([stack['name'] for stack in stacks if 'not_run' in stack])}."


def _version(stack: Mapping[str, Any]) -> str:
    """Return the version of a stack, from the file that pins it."""
    if "version" in stack:
        return str(stack["version"])
    path, package = str(stack["pins"]).split()
    match = re.search(rf"(?m)^{re.escape(package)}==([^\s;]+)", (ROOT / path).read_text())
    if match is None:
        msg = f"{path} does not pin {package}"
        raise ValueError(msg)
    return match[1]


# Modules with several libraries, of which each has its text in the docstring of its class.
SEVERAL = frozenset(
    library.module
    for library in LIBRARIES
    if len({each.name for each in LIBRARIES if each.module == library.module}) > 1
)


def _page_name(library: Library) -> str:
    """Return the name of the page: several libraries are listed in one file."""
    return library.load().title.lower() if library.module in SEVERAL else library.module


def _page(cls: type[Instrumentor]) -> Iterator[str]:
    described = cls if cls.__module__.rpartition(".")[2] in SEVERAL else sys.modules[cls.__module__]
    yield NOTE
    yield f"# {cls.title}"
    yield ""
    # The heading has the name of the library, with which the docstring starts.
    yield re.sub(r"\A[^:\n]+: (?=\w)", "Stagelens ", inspect.cleandoc(described.__doc__ or ""))
    if cls.stages:
        yield ""
        yield from _table(
            "| stage | measured time |", (_stage(cls, stage) for stage in sorted(cls.stages, key=position))
        )
    if cls.facts:
        yield ""
        yield f"Also recorded: {_listed(cls.facts)}."
    if cls.not_timed:
        yield ""
        yield "Not timed:"
        yield ""
        yield from (f"- {item}" for item in cls.not_timed)


def _stage(cls: type[Instrumentor], stage: str) -> str:
    name = "" if label(stage).lower() == stage else f" ({label(stage)})"
    return f"| `{stage}`{name} | {cls.stages[stage]} |"


def _stages(cls: type[Instrumentor]) -> str:
    return ", ".join(f"`{stage}`" for stage in sorted(cls.stages, key=position)) or "none"


def _listed(words: Sequence[str]) -> str:
    return ", ".join(_ATTRIBUTES.get(word) or word.replace("_", " ") for word in words)


def _stage_table(_: str) -> Iterator[str]:
    rows = (f"| `{each.key}` | {each.label} | {each.meaning} | {'yes' if each.waiting else ''} |" for each in STAGES)
    return _table("| key | stage | meaning | waiting |", rows)


def _functions(_: str) -> Iterator[str]:
    yield "\n\n".join("\n".join(_function(name, getattr(stagelens, name))) for name in _API)


# In the order in which a reader needs them.
_API = ("instrument", "stage", "request", "attribute", "ticket", "batch", "flush")
_SECTION = re.compile(r"^(Args|Returns|Example):\n((?:(?: {4}.*)?\n)*)", re.MULTILINE)


def _function(name: str, function: Callable[..., Any]) -> Iterator[str]:
    text = (inspect.getdoc(function) or "") + "\n"
    sections = {found[1]: textwrap.dedent(found[2]).strip() for found in _SECTION.finditer(text)}
    yield f"## `{name}`"
    yield ""
    yield "```python"
    yield _signature(name, inspect.signature(function))
    yield "```"
    yield ""
    yield _SECTION.sub("", text).strip()
    if "Args" in sections:
        found = re.findall(r"^(\w+): (.*(?:\n +.*)*)", sections["Args"], re.MULTILINE)
        yield ""
        yield from _table(
            "| argument | meaning |", (f"| `{argument}` | {' '.join(text.split())} |" for argument, text in found)
        )
    if "Returns" in sections:
        yield ""
        yield f"Return value: {sections['Returns']}"
    if "Example" in sections:
        yield ""
        yield "```python"
        yield sections["Example"]
        yield "```"


def _signature(name: str, signature: inspect.Signature) -> str:
    """Return *signature* as code: on one line, or with one argument per line if it is longer than 100 characters."""
    marked, words = False, list[str]()
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not marked:
            words.append("*")
            marked = True
        default = "" if parameter.default is parameter.empty else f" = {json.dumps(parameter.default)}"
        words.append(f"{parameter.name}: {parameter.annotation}{default}")
    line = f"stagelens.{name}({', '.join(words)}) -> {signature.return_annotation}"
    if len(line) <= _MAX_SIGNATURE:
        return line
    return "\n".join((f"stagelens.{name}(", *(f"    {word}," for word in words), f") -> {signature.return_annotation}"))


_MAX_SIGNATURE = 100


def _pythons(_: str) -> Iterator[str]:
    """Yield the table of Python versions; the continuous integration has the versions that are tested."""
    workflow = (ROOT / ".github" / "workflows" / "checks.yml").read_text()
    whole = sorted(set(re.findall(r'python-version: "([\d.]+)"', workflow)))
    agent = re.findall(r'"([\d.]+)"', re.findall(r"python: \[(.*)\]", workflow)[0])
    required = _project()["requires-python"]
    return _table(
        "| part | required | tested |",
        (
            f"| agent, in your service | {required} | {', '.join((*whole, *agent))} |",
            f"| server: collector, alerts, dashboard | {required} | {', '.join(whole)} |",
        ),
    )


def _project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def _locked() -> dict[str, str]:
    return dict(re.findall(r"(?m)^([\w.-]+)==(.+)$", (ROOT / "constraints-dev.txt").read_text()))


def _packages(_: str) -> Iterator[str]:
    """Yield the table of OpenTelemetry packages: those the agent requires, and instrumentations that the tests run beside it."""
    locked, contrib = _locked(), "opentelemetry-instrumentation"
    minima = (requirement.partition(">=")[::2] for requirement in _project()["dependencies"])
    yield from _table(
        "| package | minimum | tested |", (f"| `{name}` | {minimum} | {locked[name]} |" for name, minimum in minima)
    )
    yield f"| `{contrib}-*`, in the same process as Stagelens | none | {locked[contrib]} |"


def _databases(_: str) -> Iterator[str]:
    locked, extras = _locked(), _project()["optional-dependencies"]
    clickhouse = ".".join(locked["chdb-core"].split(".")[:2])
    servers = {"postgres": "PostgreSQL 15", "clickhouse": f"ClickHouse {clickhouse} (as chDB)"}
    rows = ["| SQLite | the version of Python's `sqlite3` | `sqlite3` | none | part of Python |"]
    for extra, server in servers.items():
        driver, _, minimum = extras[extra][0].partition(">=")
        tested = locked[driver.partition("[")[0]]
        rows.append(f"| {server.partition(' ')[0]} | {server} | `{driver}` | {minimum} | {tested} |")
    return _table("| database | tested | driver | minimum driver version | tested driver version |", rows)


def _versions(_: str) -> Iterator[str]:
    known, oldest = _classes(), oldest_versions()
    tested = {package: version for _, cls in known for package, version in cls.tested.items()}
    rows: list[str] = []
    for package, newest in sorted(tested.items(), key=lambda item: item[0].lower()):
        libraries = ", ".join(f"[{cls.title}](libraries/{module}.md)" for module, cls in known if package in cls.tested)
        first = oldest.get(package, newest)
        rows.append(f"| `{package}` | {newest if first == newest else f'{first}, {newest}'} | {libraries} |")
    return _table("| package | tested versions | library |", rows)


def oldest_versions() -> dict[str, str]:
    """Return the versions that `make test-oldest` installs, by distribution."""
    pinned = (ROOT / "tests" / "instrumentors" / "libraries" / "oldest.txt").read_text()
    sdk = (ROOT / "tests" / "instrumentors" / "export" / "oldest-sdk.txt").read_text()
    return dict(re.findall(r"(?m)^([\w.-]+)==([\w.]+)", f"{pinned}\n{sdk}"))


# Each returns the lines of a region, from its argument.
_REGIONS: Mapping[str, Callable[[str], Iterator[str]]] = {
    "databases": _databases,
    "dialects": _dialects,
    "file": _file,
    "functions": _functions,
    "libraries": _libraries,
    "packages": _packages,
    "pythons": _pythons,
    "settings": _settings,
    "software": _software,
    "stages": _stage_table,
    "versions": _versions,
}


def main() -> None:
    written = pages()
    for path, text in written.items():
        (HERE / path).write_text(text)
    for path in sorted((HERE / "libraries").glob("*.md")):
        if f"libraries/{path.name}" not in written:
            path.unlink()


if __name__ == "__main__":
    main()
