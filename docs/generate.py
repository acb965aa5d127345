"""Write `docs/libraries/`: a page for each library, from what its module declares about itself.

    python docs/generate.py    (or: make docs)

tests/test_docs.py holds the pages to the modules.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from stagelens.core.stages import label, position
from stagelens.instrumentors.instrumentor import Instrumentor
from stagelens.instrumentors.registry import LIBRARIES

HERE = Path(__file__).parent
NOTE = "<!-- Written by docs/generate.py from the module's own declarations. -->"


def pages() -> dict[str, str]:
    """Return the text of each page, by its path below `docs/`."""
    classes = {library.module: library.load() for library in LIBRARIES}
    known = sorted(classes.items(), key=lambda item: item[1].title.lower())
    texts = {f"libraries/{module}.md": "\n".join(_page(cls)) + "\n" for module, cls in known}
    return {"libraries/README.md": "\n".join(_index(known)) + "\n", **texts}


def _index(known: list[tuple[str, type[Instrumentor]]]) -> Iterator[str]:
    yield NOTE
    yield "# Libraries"
    yield ""
    yield "What Stagelens times by itself, in any service started with `stagelens run -- …`, `opentelemetry-instrument …` or"
    yield 'after `stagelens.instrument()`. Anything else is one line by hand: `with stagelens.stage("preprocess"):`.'
    yield ""
    yield "| library | stages | tested with |"
    yield "|---|---|---|"
    for module, cls in known:
        yield f"| [{cls.title}]({module}.md) | {_stages(cls)} | {_tested(cls)} |"


def _page(cls: type[Instrumentor]) -> Iterator[str]:
    module = sys.modules[cls.__module__]
    yield NOTE
    yield f"# {cls.title}"
    yield ""
    yield inspect.cleandoc(module.__doc__ or "")
    if cls.stages:
        yield ""
        yield "| stage | what counts as it |"
        yield "|---|---|"
        for stage in sorted(cls.stages, key=position):
            yield f"| `{stage}` {label(stage)} | {cls.stages[stage]} |"
    if cls.facts:
        yield ""
        yield f"A request learns its {_listed(cls.facts)} here."
    if cls.not_timed:
        yield ""
        yield "Not timed:"
        yield ""
        for item in cls.not_timed:
            yield f"- {item}"
    yield ""
    yield f"Tested with {_tested(cls)}."


def _stages(cls: type[Instrumentor]) -> str:
    return ", ".join(f"`{stage}`" for stage in sorted(cls.stages, key=position)) or "none"


def _tested(cls: type[Instrumentor]) -> str:
    return ", ".join(f"{name} {version}" for name, version in cls.tested.items())


def _listed(words: Sequence[str]) -> str:
    texts = [word.replace("_", " ") for word in words]
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"


def main() -> None:
    """Write them."""
    for path, text in pages().items():
        (HERE / path).write_text(text)
    for path in sorted((HERE / "libraries").glob("*.md")):
        if f"libraries/{path.name}" not in pages():
            path.unlink()


if __name__ == "__main__":
    main()
