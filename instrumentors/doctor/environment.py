"""What a check may look at, and what it says of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from .sources import Sources
from .target import Target

# Where we were tested; see pyproject's requires-python and dependencies.
OLDEST_PYTHON = (3, 11)
OLDEST_OPENTELEMETRY = (1, 30)


class Finding(NamedTuple):
    """One thing that was found.

    Args:
        text: What is so, and what follows from it.
        cure: What to write, as it is to be written; "" where nothing can be done.
        hurts: Whether something is lost by it: not timed, not delivered, wrong. Else it is worth knowing.
    """

    text: str
    cure: str = ""
    hurts: bool = True


@dataclass(frozen=True, slots=True)
class Interpreter:
    """What the command's interpreter says of itself, started as the command would start it.

    Args:
        executable: Its path.
        version: Its version.
        implementation: `cpython` or another.
        gil: Whether it has the lock.
        ignores_environment: Whether it was started with `-E` or `-I`.
        no_site: Whether it was started with `-S`.
        no_user_site: Whether what is installed for the user only is left out.
        sitecustomize: The file that ran as `sitecustomize`, "" for none.
        stagelens: Whether ours is `loaded`, and the `error` of importing it; its `version` and `file` where there is none.
        thread_error: Why it cannot start a thread, "" where it can.
        distributions: What is installed, and in which version.
        places: The folders of some packages.
        environment: The variables checks ask for, as they arrive.
    """

    executable: str
    version: Sequence[int]
    implementation: str
    gil: bool
    ignores_environment: bool
    no_site: bool
    no_user_site: bool
    sitecustomize: str
    stagelens: Mapping[str, Any]
    thread_error: str
    distributions: Mapping[str, str]
    places: Mapping[str, str]
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Look:
    """All there is to look at.

    Args:
        command: The command as it was given.
        target: What it comes to.
        environment: Its environment, as far as it is known.
        interpreter: What its interpreter says; None where it was not asked or did not answer.
        silence: Why it did not answer, "" where it did or was not asked.
        sources: The modules of the command's own that were found.
        kept_here: Whether the run would be kept by `stagelens run` itself, so that no collector is needed.
        alone: Whether that is so only because no collector answers, and a person waits at a terminal.
    """

    command: Sequence[str]
    target: Target
    environment: Mapping[str, str]
    interpreter: Interpreter | None = None
    silence: str = ""
    sources: Sources = field(default_factory=lambda: Sources({}))
    kept_here: bool = False
    alone: bool = False

    def installed(self, distribution: str) -> str:
        """Return the version of *distribution* in the command's environment, "" where it is not there or not known."""
        return self.interpreter.distributions.get(distribution, "") if self.interpreter else ""

    def option(self, *names: str) -> str | None:
        """Return what the first of the program's options *names* is given, "" for nothing; None where none is there."""
        words = self.target.words
        for place, word in enumerate(words):
            name, sign, value = word.partition("=")
            if name in names:
                following = words[place + 1] if place + 1 < len(words) else ""
                return value if sign else "" if following.startswith("-") else following
            # -w4 is -w 4.
            if word[:2] in names and not word.startswith("--"):
                return word[2:]
        return None


Check: TypeAlias = Callable[[Look], Iterator[Finding]]
