"""Names, comments, docstrings, messages, scripts and documentation use the words of the field, not metaphors."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
# Packages of the product. `core` also has the names on the wire and the settings.
PACKAGES = ("alerts", "analysis", "cli", "collector", "core", "dashboard", "instrumentors", "questions", "store")
# A string constant of at least so many words is a message, a help text or a text of a page.
MESSAGE_WORDS = 3

# Words we do not use, as regular expressions of whole words, and what to write instead.
WORDS = {
    r"tells?|telling|told": "notify, report, show, distinguish",
    r"hears?|heard": "receive",
    r"kept (?:request|trace)s?": "retained request, retained trace",
    r"cures?|mends?|mended|mending": "fix",
    r"promises?|promised": "objective, SLO",
    r"planned work": "maintenance window",
    r"slower tails?": "latency regression",
    r"whom": "the subject",
    r"takes? in|taken in|took in|intake": "ingest",
    r"folds?|folded|folding": "aggregate",
    r"judges?|judged|judging": "evaluate",
    r"strange": "anomalous",
    r"believes?|believed|believable": "valid, trusted",
    r"habits?": "baseline",
    r"(?<!of )course": "time series, trend",
    r"room": "capacity, space, size",
    r"begun": "started",
    r"by (?:it|them)sel(?:f|ves)": "automatically",
    r"as (?:it is|it was|they are|they were)(?=$|[.,;:])": "unchanged",
    r"as it (?:stands|comes)": "unchanged",
    r"house|nursery|weather|leftovers?|story|stories": "the term of the domain",
    r"nobody|somebody|anybody|everybody": "the subject",
    r"looks? after|looked after": "acknowledge",
    r"said of|say so|says so|is said": "report, show",
    r"given up|gives? up": "drop, cancel",
    r"sent on|sends? on|sending on": "forward",
    r"all the same": "still",
    r"lets? in|let in": "accept, authenticate",
    r"became of": "outcome",
}
# HTTP has responses. A function may answer a question.
MESSAGE_WORDS_ONLY = {
    r"answers?|answered|answering": "response, respond",
    r"asked|asking": "request, query",
    # Kinds of sentences that readers do not understand at once.
    r"most first|first by": "in descending order; sorted by",
    r"look(?:s)? like all others": "no difference",
    r"explains? all|all the gap": "the share, 100 %",
    r"instead of the usual|usually|nothing happened|thanks to": "the number and its basis: median, baseline; none; cause",
    r"uniform share": "random sample",
    r"ink": "the name of the colour",
    r"all together": "in total",
    r"at work": "runs",
    r"rough(?:ly)?": "imprecise",
}
# Words in names of functions, classes, arguments and variables, and in keys on the wire, and what to write instead.
NAME_WORDS = {
    r"tells?|told|hears?|heard": "notify, notified, report",
    r"says?|said": "summary, text",
    r"cures?": "fix",
    r"kept": "retained",
    r"promises?": "objective",
    r"begun": "started",
    r"course": "series, trend",
    r"stor(?:y|ies)": "history, incident",
    r"fold(?:s|ed)?": "aggregate",
    r"habits?": "baseline",
    r"fate": "outcome",
    r"whose?|whom|(?:some|no|any|every)body|askers?": "user, reader, sender",
    r"looks?|looked": "check, evaluation",
    r"rooms?": "capacity",
    r"patience|care|mends?|strange|believed?|judged?|dressed|beats?|sieve": "the term of the domain",
}
# Columns of tables, which keep their names.
COLUMNS = frozenset({"told_at", "heard", "story", "course", "habits", "looked_by", "kept_from"})
# Documentation is checked for these.
PAGE_WORDS = (
    r"kept (?:request|trace)s?",
    r"cures?|mends?|mended|mending",
    r"planned work",
    r"slower tails?",
    r"strange",
    r"habits?",
    r"looks? after|looked after",
    r"became of",
)
# The first sentence of a docstring starts with a verb or with what it is about.
FIRST_WORDS = re.compile(r"(?:Who|Whom|Whose|What|That which|It|All of it|See|One (?:who|that|of))\b")

# Files that may use a word, by its pattern.
EXCEPTIONS: dict[str, tuple[str, ...]] = {
    # gRPC calls its messages so.
    r"answers?|answered|answering": ("instrumentors/libraries/grpc.py",),
    # A class of the style sheet.
    r"folds?|folded|folding": ("dashboard/pages/regressions.py",),
    # Keys of stored and sent messages, and a state in the API.
    r"promises?": ("alerts/delivery/message.py", "alerts/delivery/channels/webhook.py"),
    r"looks?|looked": ("dashboard/pages/collectors.py",),
    r"kept": ("store/queries/traces.py",),
}


class Text(NamedTuple):
    path: str
    line: int
    # "docstring", "message", "comment", "name", "script" or "page"
    kind: str
    text: str


def texts_of_module(path: str, source: str) -> Iterator[Text]:
    """Yield the docstrings, comments and names of *source*, and its string constants of three words or more."""
    yield from _comments(path, source)
    skipped: set[ast.AST] = set()
    for node in ast.walk(ast.parse(source)):
        line = getattr(node, "lineno", 1)
        yield from (Text(path, line, "name", name) for name in _names(node))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if docstring := ast.get_docstring(node):
                skipped.add(node.body[0].value)  # type: ignore[attr-defined]
                yield Text(path, node.body[0].lineno, "docstring", docstring)
        elif isinstance(node, ast.JoinedStr):
            skipped.update(part for part in ast.walk(node) if part is not node)
        if node in skipped:
            continue
        text = None
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        if text is not None and len(text.split()) >= MESSAGE_WORDS:
            yield Text(path, line, "message", text)


def _comments(path: str, source: str) -> Iterator[Text]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield Text(path, token.start[0], "comment", token.string)


def _names(node: ast.AST) -> Iterator[str]:
    """Yield the names that *node* defines, and the keys of a dictionary."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield node.name
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, ast.Dict):
        keys = (key.value for key in node.keys if isinstance(key, ast.Constant))
        yield from (key for key in keys if isinstance(key, str) and key.isidentifier())


def texts_of_script(path: str, source: str) -> Iterator[Text]:
    """Yield the lines of a JavaScript file; its `camelCase` names as words."""
    for number, line in enumerate(source.splitlines(), 1):
        yield Text(path, number, "script", line.replace("Promise", ""))


def texts_of_page(path: str, source: str) -> Iterator[Text]:
    """Yield the lines of a Markdown page outside of code blocks."""
    in_block = False
    for number, text in enumerate(source.splitlines(), 1):
        if text.lstrip().startswith("```"):
            in_block = not in_block
        elif not in_block:
            yield Text(path, number, "page", text)


def complaints(found: Text) -> Iterator[str]:
    """Yield a line for each word of *found* that we do not use."""
    prose, listed = found.text, WORDS
    if found.kind in {"name", "script"}:
        prose, listed = re.sub(r"(?<=[a-z])(?=[A-Z])|_", " ", found.text), NAME_WORDS
        if found.text in COLUMNS:
            return
    elif found.kind == "message":
        listed = WORDS | MESSAGE_WORDS_ONLY
    elif found.kind == "page":
        listed = {words: WORDS[words] for words in PAGE_WORDS}
    # Names in code, `code` and the targets of links are no prose.
    if found.kind != "script":
        prose = re.sub(r"`[^`]*`|\*\w+\*|\]\([^)]*\)", " ", prose)
    place = f"{found.path}:{found.line}: {found.kind}"
    for words, instead in listed.items():
        if found.path in EXCEPTIONS.get(words, ()):
            continue
        for match in re.finditer(rf"\b(?:{words})(?!\w)", prose, re.IGNORECASE):
            yield f"{place} has {match.group()!r}, write {instead}: {found.text.strip()[:100]}"
    if found.kind == "docstring" and (start := FIRST_WORDS.match(prose)):
        yield f"{place} starts with {start.group()!r}, start with a verb or a noun: {found.text[:100]}"


def product_texts() -> Iterator[Text]:
    """Yield the texts of all modules and scripts of the product, of its documentation and of the README."""
    modules = [*ROOT.glob("*.py"), *(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))]
    scripts = (path for path in (ROOT / "dashboard" / "assets").rglob("*.js") if not path.name.endswith(".min.js"))
    pages = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    for paths, texts_of in ((sorted(modules), texts_of_module), (scripts, texts_of_script), (pages, texts_of_page)):
        for path in paths:
            yield from texts_of(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))


def test_words_are_found_in_prose_and_names() -> None:
    source = '"""What is told."""\nraise ValueError("slo.yaml: nobody answered", "of course", "`told` by two")\ntold_for = 1\n'
    found = [line for text in texts_of_module("a.py", source) for line in complaints(text)]

    assert sorted(line.partition(",")[0] for line in found) == [
        "a.py:1: docstring has 'told'",
        "a.py:1: docstring starts with 'What'",
        "a.py:2: message has 'answered'",
        "a.py:2: message has 'nobody'",
        "a.py:3: name has 'told'",
    ]


def test_texts_use_the_words_of_the_field() -> None:
    lines = [line for found in product_texts() for line in complaints(found)]

    assert lines == [], "\n".join(lines)
