"""Measure the detector of latency regressions on simulated services: false alarms, recall, delay, and the blamed stage.

    python benchmarks/regressions.py [--model drawn|queueing|routes] [--seeds tuning|evaluation] [--series N] [--first N]
        [--regressions N] [--canaries N] [--fastest R] [--processes N] [--cache DIR] [--list] [--gate]
        [--no-pooling]

Two independent models simulate services of 1 to 200 requests a second for two weeks:

- `drawn`: the time in each stage has a log-normal distribution with correlated noise; waiting is a formula.
- `queueing`: a discrete-event simulation. Requests of different sizes arrive at replicas on hosts, wait for workers, and meet
  collections of garbage, cold starts, noisy neighbours, crowds, slow dependencies, deployments and changes of the inputs. Other
  services on the same hosts are simulated, too.
- `routes` (not by default): the drawn model with four routes whose latencies differ; a change slows all of them.

Stagelens learns its baseline from the first week. In the second

- nothing changes: each alarm is false;
- a stage gets slower at a random time (all its requests by a factor or by a constant, or one in twelve), or workers lose
  capacity, so that p95 or p99 grows by 10 to 100 %, half of the time with a release;
- harmless events must not alert: spikes, releases, and in the queueing model crowds, neighbours and changes of the inputs;
- two versions serve at the same time, half of the time equally fast.

A regression must be found within five hours (three for a canary). Delays count from its start; medians include missed ones. Other
detectors on the same data: the change points of apache-otava on p99 with its defaults, if it is installed, and p99 of half an hour
at 20 % above the same half hour of the day before.

The policy was tuned on the tuning seeds (drawn: 1000 and more, queueing: 11000 and more). Results are reported on the evaluation
seeds (2000 and more, 12000 and more; routes: 21000 and 22000). `--cache` stores the simulated series, so that another policy is measured without them.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import pickle
import sys
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from traffic.drawn.routes import RoutedWorld
from traffic.drawn.world import DrawnWorld
from traffic.episodes import Series, rate_of
from traffic.evaluation import Outcome, evaluate
from traffic.queueing.world import QueueingWorld
from traffic.report import report

from stagelens.analysis.regression.policy import default_tail_policy

WORLDS = (DrawnWorld, QueueingWorld, RoutedWorld)
MODELS: Mapping[str, type[DrawnWorld | QueueingWorld]] = {each.model: each for each in WORLDS}
DEFAULT_MODELS = ("drawn", "queueing")
FIRST_SEEDS = {
    "tuning": {"drawn": 1000, "queueing": 11000, "routes": 21000},
    "evaluation": {"drawn": 2000, "queueing": 12000, "routes": 22000},
}
SERIES, REGRESSIONS, CANARIES = 24, 8, 8


@dataclass(frozen=True, slots=True)
class Run:
    """One series to measure.

    Args:
        model: Traffic model.
        seed: Seed of the series.
        regressions: Number of regressions.
        canaries: Number of canaries.
        cache: Directory of simulated series.
        pools: Whether the requests of all routes are pooled.
    """

    model: str
    seed: int
    regressions: int
    canaries: int
    cache: Path | None
    pools: bool

    def measure(self) -> Outcome:
        """Simulate and evaluate the series."""
        return evaluate(default_tail_policy(), self._series(), pools=self.pools)

    def _series(self) -> Series:
        series = MODELS[self.model](self.seed).series(self.regressions, self.canaries)
        if self.cache is None:
            return series
        name = f"{self.model}-{self.seed}-{self.regressions}-{self.canaries}-{source_digest(self.model)}.pickle.gz"
        path = self.cache / name
        if path.exists():
            with gzip.open(path) as file:
                return pickle.load(file)  # noqa: S301 - written by this program
        series, partial = series.simulated(), path.with_suffix(".partial")
        with gzip.open(partial, "wb", compresslevel=1) as file:
            pickle.dump(series, file, pickle.HIGHEST_PROTOCOL)
        partial.replace(path)
        return series


def source_digest(model: str) -> str:
    """Return a digest of the source of *model*, so that series of older source are not read from the cache."""
    folder = Path(__file__).parent / "traffic"
    sources = [
        folder / "episodes.py",
        folder / "counting.py",
        *sorted((folder / MODELS[model].__module__.split(".")[1]).glob("*.py")),
    ]
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:8]


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=list(MODELS), help="traffic model (default: drawn and queueing)")
    parser.add_argument(
        "--seeds", choices=list(FIRST_SEEDS), default="evaluation", help="set of seeds (default: evaluation)"
    )
    parser.add_argument(
        "--series", type=int, default=SERIES, help=f"number of series of each model (default: {SERIES})"
    )
    parser.add_argument("--first", type=int, default=0, help="number of seeds of the set to leave out (default: 0)")
    parser.add_argument("--regressions", type=int, default=REGRESSIONS, help=f"of each series (default: {REGRESSIONS})")
    parser.add_argument("--canaries", type=int, default=CANARIES, help=f"of each series (default: {CANARIES})")
    parser.add_argument("--fastest", type=float, help="leave out series of more requests a second, which take long")
    parser.add_argument("--processes", type=int, default=1, help="processes that simulate (default: 1)")
    parser.add_argument("--cache", type=Path, help="directory of simulated series")
    parser.add_argument("--list", action="store_true", help="list each false alarm, missed regression and wrong stage")
    parser.add_argument("--no-pooling", action="store_true", help="count the requests of all routes as they are")
    parser.add_argument("--gate", action="store_true", help="exit with 1 if a goal is missed")
    return parser.parse_args()


def main() -> int:
    """Measure and print."""
    options = arguments()
    if options.cache:
        options.cache.mkdir(parents=True, exist_ok=True)
    runs: list[Run] = []
    for model in [options.model] if options.model else DEFAULT_MODELS:
        first = FIRST_SEEDS[options.seeds][model] + options.first
        seeds = [seed for seed in range(first, first + options.series) if rate_of(seed) <= (options.fastest or 1e9)]
        runs += [
            Run(model, seed, options.regressions, options.canaries, options.cache, not options.no_pooling)
            for seed in seeds
        ]
    if not runs:
        sys.exit(f"none of these series has at most {options.fastest:g} requests a second: take more --series")
    outcomes: list[Outcome] = []
    with ProcessPoolExecutor(options.processes) as pool:
        for done in as_completed([pool.submit(run.measure) for run in runs]):
            outcomes.append(done.result())
            print(f"series {len(outcomes)} of {len(runs)}", file=sys.stderr, flush=True)
    outcomes.sort(key=lambda outcome: outcome.seed)
    print(f"{options.seeds} seeds")
    groups = [[each for each in outcomes if each.model == model] for model in MODELS]
    met = all([report(group, listed=options.list) for group in groups if group])  # noqa: C419 - prints each
    return 0 if met or not options.gate else 1


if __name__ == "__main__":
    sys.exit(main())
