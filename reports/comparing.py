"""`stagelens compare`: two saved runs, versions or windows beside each other, and whether the second may pass."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from rich.console import Console

from ..collector.config import CollectorConfig
from ..collector.store_factory import open_existing
from ..core.errors import ConfigError, StagelensError
from ..core.settings.schema import STORE
from ..core.settings.values import parse_duration
from ..core.stages import BY_KEY
from ..store import Reader
from .atomic_write import check_writable, written
from .comparing_files import json_text, junit_text, markdown
from .comparing_terminal import show
from .comparison import Contrast, Side, contrast
from .inputs import NothingError, asked_for, of_files, of_versions, of_windows
from .thresholds import Threshold, read_percentile, read_thresholds

FINE, BROKEN, WRONG, TOO_FEW, INTERRUPTED = 0, 1, 2, 3, 130
_EXIT = {"passed": FINE, "failed": BROKEN, "unknown": TOO_FEW}
_STDOUT = "-"
_EPILOG = """\
exit codes: 0 no threshold is broken, 1 one is, 2 wrong usage or a file that cannot be read, 3 too few requests to tell,
130 interrupted

  stagelens compare base.json head.json --fail-on p99:+10%,stage:queue:+5ms --min-requests 1000
  stagelens compare --service checkout --versions 1.4 1.5 --window 1h
  stagelens compare --service checkout --windows 2026-11-01T09:00Z/2026-11-01T10:00Z 2026-11-02T09:00Z/2026-11-02T10:00Z
"""


def parser() -> argparse.ArgumentParser:
    """Return what reads the command line."""
    made = argparse.ArgumentParser(
        "stagelens compare",
        usage="stagelens compare [options] (A.json B.json | --versions A B | --windows FROM/TO FROM/TO)",
        description="Compare the latency of A and B, stage by stage, with how sure each difference is.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument(
        "files", nargs="*", type=Path, metavar="FILE", help="saved runs, or whatever `stagelens import` reads"
    )
    made.add_argument("--versions", nargs=2, metavar=("A", "B"), help="two versions of a service in the store")
    made.add_argument(
        "--window",
        metavar="TIME",
        default="1h",
        help="of two versions the last so much in which both served, or each did (1h)",
    )
    made.add_argument("--windows", nargs=2, metavar="FROM/TO", help="two times of a service in the store, ISO 8601")
    made.add_argument("--service", metavar="NAME", help="which service, where there are several")
    made.add_argument("--environment", metavar="NAME", help="which environment of the store")
    made.add_argument("--route", metavar="ROUTE", help="only requests of this route")
    made.add_argument(
        "--percentile", metavar="PNN", help="where to look at stages (the highest of p50, p90 and p99 that can be told)"
    )
    made.add_argument(
        "--fail-on",
        action="append",
        default=[],
        metavar="LIMITS",
        help="such as p99:+10%%,stage:queue:+5ms,ttft:p50:+20ms,errors:+1%%",
    )
    made.add_argument(
        "--min-requests", type=_count, default=0, metavar="N", help="with fewer on either side: exit code 3"
    )
    made.add_argument("--strict", action="store_true", help="break a threshold by the estimate alone, sure or not")
    made.add_argument("--markdown", metavar="FILE", help="write it for a pull request; - for stdout")
    made.add_argument("--junit", metavar="FILE", help="write a test case for each threshold")
    made.add_argument("--json", metavar="FILE", help="write all numbers; - for stdout")
    for setting in STORE:
        if setting.option:
            made.add_argument(setting.option, dest=setting.variable, metavar="X", help=setting.help.replace("%", "%%"))
    return made


def main(words: Sequence[str], environment: Mapping[str, str]) -> int:
    """Compare what *words* name.

    Args:
        words: The command line after `compare`.
        environment: The settings.

    Returns:
        The exit code, see `parser`.
    """
    options = parser().parse_args(words)
    try:
        return _compare(options, environment)
    except NothingError as error:
        print(f"stagelens: {error}: there is nothing to compare", file=sys.stderr)
        return TOO_FEW
    except StagelensError as error:
        print(f"stagelens: {error}", file=sys.stderr)
        return WRONG
    except KeyboardInterrupt:
        print("\nstagelens: interrupted; nothing was compared", file=sys.stderr)
        return INTERRUPTED


def _compare(options: argparse.Namespace, environment: Mapping[str, str]) -> int:
    thresholds = [each for text in options.fail_on for each in read_thresholds(text)]
    quantile = None if options.percentile is None else _percentile(options.percentile)
    outputs: list[tuple[str, str | None, Callable[[Contrast], str]]] = [
        ("--markdown", options.markdown, markdown),
        ("--junit", options.junit, junit_text),
        ("--json", options.json, json_text),
    ]
    for option, target, _ in outputs:
        if target and target != _STDOUT:
            check_writable(Path(target), option)
    with _sides(options, environment) as (read, a, b):
        found = contrast(read, a, b, quantile, thresholds, options.min_requests, strict=options.strict)
    _check_stages(thresholds, found)
    for _, target, text in outputs:
        _write(target, text(found))
    if not any(target == _STDOUT for _, target, _ in outputs):
        show(found, Console())
    return _EXIT[found.outcome]


@contextmanager
def _sides(options: argparse.Namespace, environment: Mapping[str, str]) -> Generator[tuple[Reader, Side, Side]]:
    ways = [bool(options.files), options.versions is not None, options.windows is not None]
    if sum(ways) != 1 or len(options.files) not in (0, 2):
        msg = "name two files, or two --versions, or two --windows; `stagelens compare --help` has examples"
        raise ConfigError(msg)
    asked = asked_for(options.service, options.environment, options.route)
    if options.files:
        if options.environment:
            msg = "--environment is for stores; of files all is compared"
            raise ConfigError(msg)
        with of_files(options.files, asked) as found:
            yield found
        return
    window = parse_duration(options.window, "--window")
    given = {setting.variable: value for setting in STORE if (value := getattr(options, setting.variable, None))}
    with closing(open_existing(CollectorConfig.from_env({**environment, **given}))) as store:
        read = store.read
        sides = (
            of_versions(read, asked, options.versions, window)
            if options.versions
            else of_windows(read, asked, options.windows)
        )
        yield read, *sides


def _check_stages(thresholds: Sequence[Threshold], found: Contrast) -> None:
    seen = {each.stage for each in found.stages}
    for each in thresholds:
        if each.stage and each.stage not in seen and each.stage not in BY_KEY:
            msg = (
                f"--fail-on {each.text!r}: no request has the stage {each.stage!r}; there are {', '.join(sorted(seen))}"
            )
            raise ConfigError(msg)


def _percentile(text: str) -> float:
    try:
        return read_percentile(text)
    except ConfigError as error:
        msg = f"--percentile: {error}; write one such as p99 or p99.9"
        raise ConfigError(msg) from None


def _write(target: str | None, text: str) -> None:
    if target == _STDOUT:
        print(text)
    elif target:
        with written(Path(target)) as file:
            file.write(text + "\n")


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        msg = f"{text!r} is no number of requests, such as 1000"
        raise argparse.ArgumentTypeError(msg)
    return int(text)
