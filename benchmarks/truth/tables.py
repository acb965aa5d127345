"""One table for each scenario: planted and reported side by side."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from stagelens.core.stages import OVERHEAD

from .comparison import MIN_COVERED, QUANTILES, Compared, Pair
from .reported import Reported

_ONE = ("planted", "reported", "error", "%")
COLUMNS = (*_ONE, *_ONE, "exact", "exact", "single", "")
GROUPS = ("p50", "", "", "", "p99", "", "", "", "p50", "p99", "p99", "")


def show(title: str, compared: Sequence[Compared], reported: Reported, *, gated: bool = True) -> None:
    """Print the table of one scenario; *gated* says whether `--gate` holds what is covered of it."""
    print(f"  {title}: {reported.requests} requests, mean {_ms(reported.mean)} ms")
    print(_line("", GROUPS))
    print(_line("[ms]", COLUMNS))
    for each in compared:
        print(_line(each.stage, _cells(each)))
    _show_others(reported, {OVERHEAD, *(each.stage for each in compared)})
    verdict = "ok" if reported.covered >= MIN_COVERED else "MISSED" if gated else "MISSED, not gated"
    print(
        f"    covered: p50 {reported.covered:.1%} (overhead there {_ms(reported.overhead)} ms),"
        f" mean {reported.covered_mean:.1%}  {verdict}\n",
        flush=True,
    )


def _show_others(reported: Reported, shown: Collection[str]) -> None:
    """Print what the service has as well: what of it was planned is not known."""
    others = {stage: histogram.sum for stage, histogram in reported.histograms.items() if stage not in shown}
    if others:
        means = ", ".join(f"{stage} {_ms(total / reported.requests)}" for stage, total in others.items())
        print(f"    not planted, mean of all requests [ms]: {means}")


def _cells(each: Compared) -> tuple[str, ...]:
    verdict = "ok" if each.near else "MISSED"
    if each.counted != each.requests:
        verdict += f" ({each.counted} of {each.requests})"
    if each.averaged:
        return (*_pair(each.mean), "", "", "", "", "", "", "", f"{verdict} (mean)")
    exact = ("", "") if each.exact is None else tuple(f"{pair.error * 1000:+.2f}" for pair in each.exact)
    single = "" if each.single is None else _ms(each.single[QUANTILES.index(0.99)])
    return (*(cell for pair in each.quantiles for cell in _pair(pair)), *exact, single, verdict)


def _pair(pair: Pair) -> tuple[str, ...]:
    return _ms(pair.planted), _ms(pair.reported), f"{pair.error * 1000:+.2f}", f"{pair.relative * 100:+.1f}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.2f}"


def _line(name: str, cells: Sequence[str]) -> str:
    return f"    {name:<12}" + "".join(f"{cell:>9}" for cell in cells[:-1]) + f"  {cells[-1]}"
