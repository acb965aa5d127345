"""Results of `vllm bench serve --save-result --save-detailed`: when the tokens of each request came, as its client saw it.

A request is `prefill` until its first token, with what it waited in the queue and on the wire, and `decode` from then on. When
requests began is told by newer versions only (`start_times`); else they are spread evenly over the run. What was generated is not
read.

Source: https://github.com/vllm-project/vllm/blob/main/vllm/benchmarks/serve.py; profiles by VLLM_TORCH_PROFILER_DIR are torch's.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import accumulate, chain, repeat
from typing import Any

from ...core import names
from ..otlp.json_fields import Object
from .source import ImportFileError, Source
from .spans import FIRST_TOKEN, TOKENS_IN, TOKENS_OUT, Interval, Request, exports

SERVICE = "vllm"
# Besides, what tells that a file is such a result.
KEYS = ("ttfts", "itls", "request_throughput", "output_throughput", "mean_ttft_ms")
_NS = 1_000_000_000
# No clock shows so much; the comparison leaves out NaN and infinity, too. [seconds]
_MOST = 1e12
# Longer than any request lasts. [seconds]
_MOST_SECONDS = 1e6


def read(source: Source, service: str | None) -> Iterator[tuple[str, Object]]:
    """Yield the requests of *source* as spans.

    Raises:
        ImportFileError: It has totals only.
    """
    count = sum(1 for _ in source.items("ttfts.item", quiet=True))
    if not count:
        msg = (
            f"{source.path}: has no time of a single request; run `vllm bench serve` with --save-result --save-detailed"
        )
        raise ImportFileError(msg)
    for export in exports(_requests(source, count), service or SERVICE, source.digest):
        yield "", export


def _requests(source: Source, count: int) -> Iterator[Request]:
    values = {names.MODEL: _text(source, "model_id"), names.ROUTE: _text(source, "backend")}
    known = {key: value for key, value in values.items() if value}
    columns = (
        source.items("ttfts.item"),
        *(_column(source, key) for key in ("itls", "input_lens", "output_lens", "errors")),
    )
    starts, failed = _starts(source, count), 0
    for number, (first, gaps, taken, given, error) in enumerate(zip(*columns, strict=False), 1):
        start = next(starts)
        if error:
            failed += 1
        elif not _is_time(first) or not isinstance(gaps or [], list) or not all(map(_is_time, gaps or [])):
            source.told.skip(f"request {number}", "has times that are none")
        else:
            yield _request(start, first, gaps or [], known | _tokens(taken, given))
    if failed:
        source.told.note(f"{failed} requests that failed are left out: the file does not say how long they took")


def _request(start: int, first: float, gaps: list[float], values: dict[str, str | int]) -> Request:
    came = [start + round(seconds * _NS) for seconds in accumulate(chain([first], gaps))]
    stages = [Interval("prefill", start, came[0]), Interval("decode", came[0], came[-1])]
    return Request("request", start, came[-1], stages, values | {FIRST_TOKEN: came[0] - start}, came)


def _tokens(taken: Any, given: Any) -> dict[str, str | int]:
    found = {TOKENS_IN: taken, TOKENS_OUT: given}
    return {key: value for key, value in found.items() if type(value) is int and value > 0}


def _column(source: Source, key: str) -> Iterator[Any]:
    """Yield the values at *key*, and None for ever after."""
    return chain(source.items(f"{key}.item", quiet=True), repeat(None))


def _starts(source: Source, count: int) -> Iterator[int]:
    """Yield when each request began, in Unix nanoseconds."""
    duration = sum(each for each in source.items("duration", quiet=True) if _is_time(each)) or 1.0
    begun = _ended_ns(source) - round(duration * _NS)
    told = list(source.items("start_times.item", quiet=True))
    if len(told) == count and all(map(_is_number, told)) and max(told) - min(told) < _MOST_SECONDS:
        first = min(told)
        yield from (begun + round((each - first) * _NS) for each in told)
        return
    source.told.note("it does not say when requests began: they are spread evenly over the run")
    yield from (begun + round(duration * number / count * _NS) for number in range(count))


def _ended_ns(source: Source) -> int:
    *_, date = chain([None], source.items("date", quiet=True))
    try:
        # As the machine that wrote it has the time of day, which is not told; ours is taken for the same.
        ended = datetime.strptime(str(date), "%Y%m%d-%H%M%S").astimezone(UTC)
    except ValueError:
        source.note_undated()
        return source.ended_ns
    return int(ended.timestamp()) * _NS


def _text(source: Source, key: str) -> str:
    found: list[Any] = list(source.items(key, quiet=True))
    return found[-1] if found and isinstance(found[-1], str) else ""


def _is_time(value: Any) -> bool:
    return _is_number(value) and 0 <= value < _MOST_SECONDS


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < _MOST
