"""`python tests/chaos`: kill collectors, and break everything around them, as often as you like; then count."""

from __future__ import annotations

import argparse
import secrets
import sys
import time
from contextlib import ExitStack
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / folder) for folder in ("postgresql", "shared")]

from postgresql_server import find_programs, postgresql  # noqa: E402 - found by the line above
from storm import Plan, on_postgresql, on_sqlite, run  # noqa: E402


def main() -> int:
    """Run what the command line asks for; return 1 if anything was lost or counted twice."""
    parser = argparse.ArgumentParser("tests/chaos", description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="how often a collector is killed (default 100)")
    parser.add_argument("--seed", type=int, default=secrets.randbits(32), help="to meet the same troubles again")
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")
    options = parser.parse_args()
    print(f"seed {options.seed}, {options.kills} kills, {options.database}", flush=True)
    started = time.monotonic()
    with ExitStack() as stack:
        if options.database == "sqlite":
            place = stack.enter_context(on_sqlite(options.seed))
        else:
            programs = find_programs()
            assert programs, "no PostgreSQL on this machine"
            place = stack.enter_context(on_postgresql(options.seed, stack.enter_context(postgresql(programs))))
        outcome = run(place, Plan(options.kills), lambda said: print(said, flush=True))
        print(f"{', '.join(f'{what} x{often}' for what, often in outcome.met.most_common())}")
        print(f"{outcome.broken} connections broken in {time.monotonic() - started:.0f} s")
        for service, sent in sorted(outcome.sent.requests.items()):
            print(f"{service}: {sent} requests sent, {outcome.stored.requests[service]} counted")
        found = outcome.differences()
        print("\n".join(found) or "nothing lost, nothing twice")
        assert not found, f"seed {options.seed}"
    return 0


if __name__ == "__main__":
    sys.exit(main())
