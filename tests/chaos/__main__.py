"""`python -m tests.chaos`: kill collectors, and break everything around them, as often as you like; then count."""

from __future__ import annotations

import argparse
import secrets
import sys
import time
from contextlib import ExitStack

from tests.chaos.chaos_run import Plan, on_postgresql, on_sqlite, run
from tests.support.postgresql_server import find_programs, postgresql


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.chaos", description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="how often a collector is killed (default 100)")
    parser.add_argument("--seed", type=int, default=secrets.randbits(32), help="to meet the same troubles again")
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")
    options = parser.parse_args()
    print(f"seed {options.seed}, {options.kills} kills, {options.database}", flush=True)
    started = time.monotonic()
    with ExitStack() as stack:
        if options.database == "sqlite":
            deployment = stack.enter_context(on_sqlite(options.seed, options.kills))
        else:
            programs = find_programs()
            assert programs, "no PostgreSQL on this machine"
            deployment = stack.enter_context(on_postgresql(options.seed, stack.enter_context(postgresql(programs))))
        outcome = run(deployment, Plan(options.kills), lambda line: print(line, flush=True))
        print(f"{', '.join(f'{what} x{often}' for what, often in outcome.met.most_common())}")
        print(f"{outcome.broken} connections broken in {time.monotonic() - started:.0f} s")
        for service, sent in sorted(outcome.sent.requests.items()):
            print(f"{service}: {sent} requests sent, {outcome.stored.requests[service]} counted")
        differences = outcome.differences()
        print("\n".join(differences) or "nothing lost, nothing twice")
        assert not differences, f"seed {options.seed}"
    return 0


if __name__ == "__main__":
    sys.exit(main())
