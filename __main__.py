"""Command line of Stagelens."""

from __future__ import annotations

import codecs
import io
import os
import sys
import unicodedata
from collections.abc import Sequence

from .cli.commands import find_command, root_parser, run_command
from .core.errors import StagelensError
from .core.version import __version__


def main(given: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        given: Arguments after `stagelens`; None for those of this process.

    Returns:
        0 for success, 1 for a reported error, 2 for an invalid command line.
    """
    if given is None:
        _prepare_streams()
    words = list(sys.argv[1:] if given is None else given)
    command = find_command(words)
    if command is None:
        root_parser(__version__).parse_args(words)
        return 2  # not reached: without a command, the parser exits
    try:
        code = run_command(command, words, os.environ)
        sys.stdout.flush()
    except StagelensError as error:
        print(f"stagelens: {error}", file=sys.stderr)
    except BrokenPipeError:
        # The reader has closed the pipe, as `head` does; buffered output must not be written again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except ModuleNotFoundError as error:
        _explain_missing(error, command.extra)
    else:
        return code
    return 1


def _explain_missing(error: ModuleNotFoundError, extra: str) -> None:
    """Print which *extra* of the package has the missing module, or run this command line again with it."""
    if (error.name or "").partition(".")[0] in ("", "stagelens"):
        raise error
    from .cli.rerun import rerun_with  # noqa: PLC0415

    rerun_with(extra, sys.argv[1:])
    fix = f'pip install "stagelens[{extra}]"'
    print(
        f"stagelens: this command needs the {extra} extra ({error.name} is not installed).\n    {fix}", file=sys.stderr
    )


def _prepare_streams() -> None:
    """Let the streams of this process accept every character, and be there if its parent has closed them."""
    codecs.register_error("stagelens", _similar)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115 - until the exit
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="stagelens")


def _similar(error: UnicodeError) -> tuple[str, int]:
    """Replace what an encoding does not have by similar ASCII characters, or question marks."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = unicodedata.normalize("NFKD", error.object[error.start : error.end])
    return text.encode("ascii", "replace").decode(), error.end


if __name__ == "__main__":
    sys.exit(main())
