"""Alerts people trust: the proof in one command.

    python benchmarks/alerts.py                         a short round of each, in about ten minutes
    python benchmarks/alerts.py PART [OPTION...]        one of them, with its own options (`PART --help` names them)

- delivery: is any alert lost, or told twice, while receivers fail and the process that delivers is killed?
- burn: when burn-rate alerts fire and stop, and how often for nothing, beside the workbook and Prometheus.
- regressions: is a slower tail found, soon, and blamed on the right stage? Beside two others.
- cost: what evaluating takes of a core, for each objective and for 1,000 series.

Each is a program of its own in this folder. A short round shows that everything works; the numbers of the documentation
come from each part without options.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
# The program of each part, and the options of its short round.
PARTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "delivery": ("delivery.py", ("--incidents", "10", "--kills", "40")),
    "burn": ("burn.py", ("--weeks", "1")),
    "regressions": ("regressions.py", ("--series", "8", "--fastest", "20", "--regressions", "2", "--canaries", "2")),
    "cost": ("evaluation.py", ("--routes", "10", "--minutes", "10")),
}


def run(part: str, options: Sequence[str]) -> int:
    """Run *part* with *options* and return its exit code."""
    print(f"## {part}\n", flush=True)
    return subprocess.run([sys.executable, HERE / PARTS[part][0], *options], check=False).returncode


def main() -> int:
    """Run what is asked for."""
    part, *options = sys.argv[1:] or [""]
    if not part:
        return max([run(name, short) for name, (_, short) in PARTS.items()])
    if part not in PARTS:
        print(__doc__, file=sys.stdout if part in ("-h", "--help") else sys.stderr)
        return 0 if part in ("-h", "--help") else 2
    return run(part, options)


if __name__ == "__main__":
    sys.exit(main())
