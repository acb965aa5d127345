"""`python -m tests.fuzz`: feed everything that reads what strangers send, and see that it neither breaks, hangs nor grows.

Half of the inputs are right ones that were broken by their structure, the other half is found by what code they reach.
"""

from __future__ import annotations

import argparse
import json
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.fuzz.steady import MOST_BYTES, MOST_SECONDS, Outcome
from tests.fuzz.targets import TARGETS

FOLDER = Path(__file__).parent
# Allocators keep some of what they once had; a leak of 100 bytes an input is more than this in a long run. [bytes]
MOST_LEFT_BYTES = 24 * 1024**2
_MEGABYTE = 1024**2


def steady(name: str, inputs: int, seed: int) -> Outcome:
    command = [sys.executable, "-m", "tests.fuzz.steady", name, str(inputs), str(seed)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    fields = json.loads(done.stdout)
    outcome = Outcome(**fields | {"rss_bytes": tuple(fields["rss_bytes"])})
    assert outcome.left_bytes < MOST_LEFT_BYTES, (
        f"{name} leaves {outcome.left_bytes} bytes behind after {inputs} inputs"
    )
    return outcome


def guided(name: str, inputs: int, seed: int, found: Path) -> None:
    with tempfile.TemporaryDirectory() as corpus:
        for number, data in enumerate(TARGETS[name].seeds()):
            (Path(corpus) / f"seed-{number}").write_bytes(data)
        # libFuzzer writes what it finds into the first folder, and takes 0 for a seed of its own.
        options = (
            f"-runs={inputs}",
            f"-seed={seed % 2**31 or 1}",
            "-max_len=16384",
            # By the clock of the wall, and the machine may be busy.
            f"-timeout={12 * MOST_SECONDS}",
            f"-rss_limit_mb={MOST_BYTES // _MEGABYTE}",
            f"-artifact_prefix={found}/{name}-",
        )
        saved = FOLDER / "corpus" / name
        command = [
            sys.executable,
            "-m",
            "tests.fuzz.coverage_guided",
            name,
            corpus,
            *([str(saved)] if saved.exists() else []),
        ]
        done = subprocess.run([*command, *options], check=False, capture_output=True, text=True, errors="replace")
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
        shutil.copytree(corpus, found / "reached" / name, dirs_exist_ok=True)


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000, help="how many in all (default 1000000)")
    parser.add_argument("--seed", type=int, default=secrets.randbits(31), help="to meet the same inputs again")
    parser.add_argument("--targets", nargs="+", choices=list(TARGETS), default=list(TARGETS), metavar="TARGET")
    parser.add_argument("--found", type=Path, default=Path("artifacts/fuzz"), help="where to leave what was found")
    options = parser.parse_args()
    options.found.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    parts = sum(TARGETS[name].share for name in options.targets)
    shares = {name: -(-options.inputs * TARGETS[name].share // (2 * parts)) for name in options.targets}
    failed = 0
    print(f"seed {options.seed}, {2 * sum(shares.values()):,} inputs", flush=True)
    for name, share in shares.items():
        try:
            outcome = steady(name, share, options.seed)
            guided_start = time.monotonic()
            guided(name, share, options.seed, options.found)
        except AssertionError as error:
            failed += 1
            print(f"{name}: {error}", flush=True)
            continue
        warm, end = (f"{size / _MEGABYTE:.0f} MiB" for size in outcome.rss_bytes)
        print(
            f"{name}: {share:,} broken by structure in {outcome.seconds:.0f} s (slowest {outcome.slowest_seconds * 1000:.0f} ms, "
            f"{warm} then {end}), {share:,} guided by coverage in {time.monotonic() - guided_start:.0f} s",
            flush=True,
        )
    print(f"{failed} of {len(options.targets)} targets failed; {time.monotonic() - started:.0f} s")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
