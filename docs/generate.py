"""Write the generated pages: `docs/libraries/`, `python-api.md`, `compatibility.md`, and parts of other pages.

    python docs/generate.py    (or: make docs)

The texts come from docstrings and declarations. A file between `<!-- file: PATH -->` and `<!-- end of file -->` is copied
unchanged. tests/test_docs.py fails if a page is not current.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
import textwrap
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
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
_FILE = re.compile(r"(<!-- file: (\S+) -->\n).*?(<!-- end of file -->)", re.DOTALL)
# Language of a code block by the name of its file; `text` for others.
_LANGUAGES = {".py": "python", ".yaml": "yaml", ".json": "json", "Dockerfile": "dockerfile"}
_UNITS = {server_reports.S: "s", server_reports.MS: "ms", server_reports.NS: "ns"}
_NO_STAGE = {server_reports.TOTAL: "total", server_reports.TO_FIRST: "total up to the first token"}
NOTE = "<!-- docs/generate.py -->"


def pages() -> dict[str, str]:
    """Return the text of each page, by its path below `docs/`."""
    classes = {_page_name(library): library.load() for library in LIBRARIES}
    known = sorted(classes.items(), key=lambda item: item[1].title.lower())
    texts = {f"libraries/{module}.md": "\n".join(_page(cls)) + "\n" for module, cls in known}
    return {
        **{f"start/{path.name}": embed_files(path.read_text()) for path in sorted((HERE / "start").glob("*.md"))},
        "configuration.md": _TABLE.sub(_filled, (HERE / "configuration.md").read_text()),
        "reported.md": _DIALECTS.sub(_spoken, (HERE / "reported.md").read_text()),
        "libraries/README.md": "\n".join(_index(known)) + "\n",
        **texts,
        **_reference_pages(known),
    }


def embed_files(text: str) -> str:
    """Return a page with the current content of each file that it shows."""
    return _FILE.sub(_file, text)


def _file(place: re.Match[str]) -> str:
    path = HERE.parent / place[2]
    language = _LANGUAGES.get(path.suffix or path.name, "text")
    return f"{place[1]}```{language}\n{path.read_text()}```\n{place[3]}"


def _filled(table: re.Match[str]) -> str:
    """Return the table between two marks of a page, made anew."""
    rows = (_setting(setting) for setting in SETTINGS[table[2]])
    return "\n".join((table[1], "| variable | option | default | meaning |", "|---|---|---|---|", *rows, "", table[3]))


def _setting(setting: Setting) -> str:
    variables = ", ".join(f"`{name}`" for name in setting.variable.split(", "))
    option = f"`{setting.option}`" if setting.option else ""
    default = setting.default if " " in setting.default or not setting.default else f"`{setting.default}`"
    return f"| {variables} | {option} | {default} | {setting.meaning} |"


def _spoken(table: re.Match[str]) -> str:
    """Return the table of what servers say of themselves, made anew."""
    rows = map(_dialect, (*server_reports.HEADERS, *server_reports.BODIES))
    return "\n".join(
        (table[1], "| server | dialect | place | field (unit): its stage |", "|---|---|---|---|", *rows, "", table[2])
    )


def _dialect(dialect: server_reports.ReportDialect) -> str:
    inside = (f"`{'.'.join(place)}`" if place else "top level" for place in dialect.places)
    where = f"body, {' or '.join(inside)}" if dialect.places else "headers"
    if headers := [each for each in server_reports.HEADERS if dialect.places and each.name == dialect.name]:
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


def _index(known: list[tuple[str, type[Instrumentor]]]) -> Iterator[str]:
    yield NOTE
    yield "# Libraries"
    yield ""
    yield "Stagelens times these libraries automatically. Start your service with `stagelens run -- …` or"
    yield "`opentelemetry-instrument …`, or call `stagelens.instrument()` at the start of your program. To time other code, add a line such as"
    yield '`with stagelens.stage("preprocess"):`. [Compatibility](../compatibility.md) lists the tested versions.'
    yield ""
    yield "| library | stages |"
    yield "|---|---|"
    for module, cls in known:
        yield f"| [{cls.title}]({module}.md) | {_stages(cls)} |"
    yield ""
    yield "## Servers, engines and senders"
    yield ""
    yield "Tests run this software without a GPU, measured in its process (*agent*), from its *spans* or *metrics*, or in the *client*."
    yield ""
    yield "| software | version | measured by | test |"
    yield "|---|---|---|---|"
    stacks: list[dict[str, Any]] = yaml.safe_load((HERE / "libraries" / "stacks.yaml").read_text())
    for each in stacks:
        if "test" in each:
            soak = ", `make soak`" if each.get("soak") else ""
            yield f"| {each['name']} | {_version(each)} | {each['measured']} | `{each['test']}`{soak} |"
    yield ""
    yield f"No test runs {_listed([each['name'] for each in stacks if 'not_run' in each])}."


def _version(stack: Mapping[str, Any]) -> str:
    """Return the version of a stack, from the file that pins it."""
    if "version" in stack:
        return str(stack["version"])
    path, package = str(stack["pins"]).split()
    found = re.search(rf"(?m)^{re.escape(package)}==([^\s;]+)", (ROOT / path).read_text())
    if found is None:
        msg = f"{path} does not pin {package}"
        raise ValueError(msg)
    return found[1]


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
        yield "| stage | measured time |"
        yield "|---|---|"
        for stage in sorted(cls.stages, key=position):
            name = "" if label(stage).lower() == stage else f" ({label(stage)})"
            yield f"| `{stage}`{name} | {cls.stages[stage]} |"
    if cls.facts:
        yield ""
        yield f"Also recorded: {_listed(cls.facts)}."
    if cls.not_timed:
        yield ""
        yield "Not timed:"
        yield ""
        for item in cls.not_timed:
            yield f"- {item}"


def _stages(cls: type[Instrumentor]) -> str:
    return ", ".join(f"`{stage}`" for stage in sorted(cls.stages, key=position)) or "none"


def _listed(words: Sequence[str]) -> str:
    return ", ".join(_ATTRIBUTES.get(word) or word.replace("_", " ") for word in words)


def _reference_pages(known: list[tuple[str, type[Instrumentor]]]) -> dict[str, str]:
    return {
        "python-api.md": "\n".join(_python_api()) + "\n",
        "compatibility.md": "\n".join(_compatibility(known)) + "\n",
        "glossary.md": _STAGES.sub(_stage_table, (HERE / "glossary.md").read_text()),
    }


_STAGES = re.compile(r"(<!-- stages .*?-->\n).*?(<!-- end of stages -->)", re.DOTALL)


def _stage_table(table: re.Match[str]) -> str:
    rows = (f"| `{each.key}` | {each.label} | {each.meaning} | {'yes' if each.waiting else ''} |" for each in STAGES)
    return "\n".join((table[1], "| key | stage | meaning | waiting |", "|---|---|---|---|", *rows, "", table[2]))


def _python_api() -> Iterator[str]:
    yield "<!-- docs/generate.py -->"
    yield "# Python API"
    yield ""
    yield "These functions are the public Python API of the agent. Import them with `import stagelens`."
    yield "`stagelens run -- …` times [supported libraries](libraries/README.md) automatically, without these functions."
    yield ""
    for name in _API:
        yield ""
        yield from _function(name, getattr(stagelens, name))
    yield ""
    yield "## Limits"
    yield ""
    yield "- All other functions and classes of the package are internal and can change in any version."
    yield "- The functions never raise an exception in your code."
    yield "- [Batches](batches.md) has complete examples of tickets."


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
        yield ""
        yield "| argument | meaning |"
        yield "|---|---|"
        for found in re.finditer(r"^(\w+): (.*(?:\n +.*)*)", sections["Args"], re.MULTILINE):
            yield f"| `{found[1]}` | {' '.join(found[2].split())} |"
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
    for each in signature.parameters.values():
        if each.kind is each.KEYWORD_ONLY and not marked:
            words.append("*")
            marked = True
        default = "" if each.default is each.empty else f" = {json.dumps(each.default)}"
        words.append(f"{each.name}: {each.annotation}{default}")
    line = f"stagelens.{name}({', '.join(words)}) -> {signature.return_annotation}"
    if len(line) <= _MAX_SIGNATURE:
        return line
    return "\n".join((f"stagelens.{name}(", *(f"    {word}," for word in words), f") -> {signature.return_annotation}"))


_MAX_SIGNATURE = 100


def _compatibility(known: list[tuple[str, type[Instrumentor]]]) -> Iterator[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    locked = dict(re.findall(r"(?m)^([\w.-]+)==(.+)$", (ROOT / "constraints-dev.txt").read_text()))
    yield "<!-- docs/generate.py -->"
    yield "# Compatibility"
    yield ""
    yield "Required and tested versions. If a library lacks a function that Stagelens times, your service still runs unchanged."
    yield ""
    yield from _pythons(project)
    yield ""
    yield from _systems()
    yield ""
    yield from _open_telemetry(project, locked)
    yield ""
    yield from _databases(project, locked)
    yield ""
    yield from _library_versions(known)


def _pythons(project: Mapping[str, Any]) -> Iterator[str]:
    """Yield the table of Python versions; the continuous integration has the versions that are tested."""
    workflow = (ROOT / ".github" / "workflows" / "checks.yml").read_text()
    whole = sorted(set(re.findall(r'python-version: "([\d.]+)"', workflow)))
    agent = re.findall(r'"([\d.]+)"', re.findall(r"python: \[(.*)\]", workflow)[0])
    yield "## Python"
    yield ""
    yield "| part | required | tested |"
    yield "|---|---|---|"
    yield f"| agent, in your service | {project['requires-python']} | {', '.join((*whole, *agent))} |"
    yield f"| server: collector, alerts, dashboard | {project['requires-python']} | {', '.join(whole)} |"
    yield ""
    yield "Only CPython is tested."


def _systems() -> Iterator[str]:
    yield "## Operating systems"
    yield ""
    yield "| system | state |"
    yield "|---|---|"
    yield "| Linux x86-64 | all tests run on it |"
    yield "| Linux arm64 | release images exist; no tests run on it |"
    yield "| macOS | no tests run on it; [host metrics](hardware.md) are limited to CPU and event-loop lag |"
    yield "| Windows | not supported |"
    yield ""
    yield "The Helm chart requires Kubernetes 1.27 or later, and was [never installed](kubernetes.md) in a real cluster."


def _open_telemetry(project: Mapping[str, Any], locked: Mapping[str, str]) -> Iterator[str]:
    """Yield the table of OpenTelemetry packages: those the agent requires, and instrumentations that the tests run beside it."""
    yield "## OpenTelemetry"
    yield ""
    yield "| package | minimum | tested |"
    yield "|---|---|---|"
    for requirement in project["dependencies"]:
        name, _, minimum = requirement.partition(">=")
        yield f"| `{name}` | {minimum} | {locked[name]} |"
    contrib = "opentelemetry-instrumentation"
    yield f"| `{contrib}-*`, in the same process as Stagelens | none | {locked[contrib]} |"


def _databases(project: Mapping[str, Any], locked: Mapping[str, str]) -> Iterator[str]:
    yield "## Databases"
    yield ""
    extras = project["optional-dependencies"]
    drivers = {name: extras[name][0].partition(">=") for name in ("postgres", "clickhouse")}
    yield "| database | tested | driver | minimum driver version | tested driver version |"
    yield "|---|---|---|---|---|"
    yield "| SQLite | the version of Python's `sqlite3` | `sqlite3` | none | part of Python |"
    for name, server in (
        ("postgres", "PostgreSQL 15"),
        ("clickhouse", f"ClickHouse {_major(locked['chdb-core'])} (as chDB)"),
    ):
        driver, _, minimum = drivers[name]
        yield f"| {server.partition(' ')[0]} | {server} | `{driver}` | {minimum} | {locked[driver.partition('[')[0]]} |"


def _major(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _library_versions(known: list[tuple[str, type[Instrumentor]]]) -> Iterator[str]:
    yield "## Libraries"
    yield ""
    yield "Stagelens does not refuse other versions."
    yield ""
    yield "| package | tested versions | library |"
    yield "|---|---|---|"
    oldest = oldest_versions()
    tested = {package: version for _, cls in known for package, version in cls.tested.items()}
    for package, newest in sorted(tested.items(), key=lambda item: item[0].lower()):
        libraries = ", ".join(f"[{cls.title}](libraries/{module}.md)" for module, cls in known if package in cls.tested)
        first = oldest.get(package, newest)
        yield f"| `{package}` | {newest if first == newest else f'{first}, {newest}'} | {libraries} |"


def oldest_versions() -> dict[str, str]:
    """Return the versions that `make test-oldest` installs, by distribution."""
    pinned = (ROOT / "tests" / "instrumentors" / "libraries" / "oldest.txt").read_text()
    sdk = (ROOT / "tests" / "instrumentors" / "export" / "oldest-sdk.txt").read_text()
    return dict(re.findall(r"(?m)^([\w.-]+)==([\w.]+)", f"{pinned}\n{sdk}"))


def main() -> None:
    """Write them."""
    for path, text in pages().items():
        (HERE / path).write_text(text)
    for path in sorted((HERE / "libraries").glob("*.md")):
        if f"libraries/{path.name}" not in pages():
            path.unlink()


if __name__ == "__main__":
    main()
