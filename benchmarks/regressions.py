"""Measure the detector of latency regressions on simulated services: false alarms, recall, delay, and the blamed stage.

    python benchmarks/regressions.py [--seeds tuning|evaluation] [--series N] [--first N] [--regressions N] [--canaries N]
        [--fastest R] [--processes N] [--list] [--gate]

A discrete-event simulation (`queueing`) of services of 1 to 200 requests a second for two weeks: requests of different sizes arrive at
replicas on hosts, wait for workers, and meet collections of garbage, cold starts, noisy neighbours, crowds, slow dependencies,
deployments and changes of the inputs. Other services on the same hosts are simulated, too.

Stagelens learns its baseline from the first week. In the second

- nothing changes: each alarm is false;
- a stage gets slower at a random time (all its requests by a factor or by a constant, or one in twelve), or workers lose
  capacity, so that p95 or p99 grows by 10 to 100 %, half of the time with a release;
- harmless events must not alert;
- two versions serve at the same time, half of the time equally fast.

A regression must be found within five hours (three for a canary). Delays count from its start; medians include missed ones. The policy
was tuned on the tuning seeds; results are reported on the evaluation seeds.
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed

from queueing.detector import Outcome, evaluate
from queueing.episodes import rate_of
from queueing.report import report

from stagelens.analysis.regression.policy import default_tail_policy

FIRST_SEEDS = {"tuning": 11000, "evaluation": 12000}
SERIES, REGRESSIONS, CANARIES = 24, 8, 8


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", choices=list(FIRST_SEEDS), default="evaluation", help="(default: evaluation)")
    parser.add_argument("--series", type=int, default=SERIES, help=f"number of series (default: {SERIES})")
    parser.add_argument("--first", type=int, default=0, help="number of seeds of the set to leave out (default: 0)")
    parser.add_argument("--regressions", type=int, default=REGRESSIONS, help=f"of each series (default: {REGRESSIONS})")
    parser.add_argument("--canaries", type=int, default=CANARIES, help=f"of each series (default: {CANARIES})")
    parser.add_argument("--fastest", type=float, default=1e9, help="leave out series of more requests a second")
    parser.add_argument("--processes", type=int, default=1, help="processes that simulate (default: 1)")
    parser.add_argument("--list", action="store_true", help="list each false alarm, missed regression and wrong stage")
    parser.add_argument("--gate", action="store_true", help="exit with 1 if a goal is missed")
    options = parser.parse_args()
    first = FIRST_SEEDS[options.seeds] + options.first
    seeds = [seed for seed in range(first, first + options.series) if rate_of(seed) <= options.fastest]
    if not seeds:
        sys.exit(f"none of these series has at most {options.fastest:g} requests a second: take more --series")
    policy, outcomes = default_tail_policy(), list[Outcome]()
    with ProcessPoolExecutor(options.processes) as pool:
        runs = [pool.submit(evaluate, policy, seed, options.regressions, options.canaries) for seed in seeds]
        for done in as_completed(runs):
            outcomes.append(done.result())
            print(f"series {len(outcomes)} of {len(seeds)}", file=sys.stderr, flush=True)
    outcomes.sort(key=lambda outcome: outcome.seed)
    met = report(outcomes, listed=options.list)
    return 0 if met or not options.gate else 1


if __name__ == "__main__":
    sys.exit(main())
