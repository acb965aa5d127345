"""Which program the text of a shell is for: what `sh -c` is given, or a start script."""

from __future__ import annotations

import os
import re
import shlex

# What stands in it beside that program.
_NO_PROGRAMS = frozenset(
    (
        *("[", ":", ".", "}", "cd", "done", "echo", "elif", "else", "esac", "exit", "export", "fi", "if", "mkdir"),
        *("printf", "set", "sleep", "source", "test", "then", "trap", "true", "ulimit", "umask", "unset", "wait"),
    )
)
_BREAKS = frozenset({"&&", ";", "||"})
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::?-([^}]*))?\}|(\w+))")


def last_program(text: str, arguments: list[str]) -> list[str] | None:
    """Return the words of what *text* execs, else of the last program it starts; None where only the shell can read it.

    Args:
        text: The commands.
        arguments: What it is given: `$0` and what `$@` stands for.

    >>> last_program("set -e; exec nice $@", ["sh", "python", "serve.py"])
    ['exec', 'nice', 'python', 'serve.py']
    """
    try:
        commands = [command for line in text.replace("\\\n", " ").splitlines() for command in _commands(line)]
    except ValueError:
        return None
    programs = [words for words in commands if words[0] not in _NO_PROGRAMS]
    words = next((words for words in programs if words[0] == "exec"), programs[-1] if programs else [])
    if not words or any(set(word) <= set("|&<>()") or "$(" in word or "`" in word for word in words):
        return None
    return [part for word in words for part in (arguments[1:] if word in ("$@", "$*") else [_filled(word)])]


def _commands(line: str) -> list[list[str]]:
    """Return the commands of a *line*, each as its words.

    Raises:
        ValueError: A quote in it is not closed.
    """
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    commands: list[list[str]] = [[]]
    for word in lexer:
        if word in _BREAKS:
            commands.append([])
        else:
            commands[-1].append(word)
    return [words for words in commands if words]


def _filled(word: str) -> str:
    """Return *word* with the variables of this environment; of one that is not set, its default or nothing."""
    return _VARIABLE.sub(lambda match: os.environ.get(match[1] or match[3]) or match[2] or "", word)
