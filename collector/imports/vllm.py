"""Results of `vllm bench serve --save-result --save-detailed`.

A request is `prefill` until its first token, including queue and network, and `decode` after it. Only newer versions record start
times (`start_times`); otherwise requests are distributed evenly over the run. Generated text is not read.

Source: https://github.com/vllm-project/vllm/blob/main/vllm/benchmarks/serve.py
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import accumulate, chain, repeat
from typing import Any

from ...core import names
from ..otlp.json_encoding import Object
from .source import ImportFile, ImportFileError
from .spans import FIRST_TOKEN, TOKENS_IN, TOKENS_OUT, ImportedRequest, StageInterval, span_exports

VLLM_SERVICE = "vllm"
# Keys that identify a vLLM benchmark result.
VLLM_KEYS = ("ttfts", "itls", "request_throughput", "output_throughput", "mean_ttft_ms")
_NS = 1_000_000_000
# Upper limit of a valid time; the comparison also excludes NaN and infinity. [seconds]
_MOST = 1e12
# Longer than any request lasts. [seconds]
_MOST_SECONDS = 1e6


def read_vllm(source: ImportFile, service: str | None) -> Iterator[tuple[str, Object]]:
    count = sum(1 for _ in source.items("ttfts.item", quiet=True))
    if not count:
        msg = (
            f"{source.path}: has no time of a single request; run `vllm bench serve` with --save-result --save-detailed"
        )
        raise ImportFileError(msg)
    for export in span_exports(_requests(source, count), service or VLLM_SERVICE, source.digest):
        yield "", export


def _requests(source: ImportFile, count: int) -> Iterator[ImportedRequest]:
    values = {names.MODEL: _text(source, "model_id"), names.ROUTE: _text(source, "backend")}
    attributes = {key: value for key, value in values.items() if value}
    columns = (
        source.items("ttfts.item"),
        *(_column(source, key) for key in ("itls", "input_lens", "output_lens", "errors")),
    )
    starts, failed = _starts(source, count), 0
    for number, (first, gaps, tokens_in, given, error) in enumerate(zip(*columns, strict=False), 1):
        start = next(starts)
        if error:
            failed += 1
        elif not _is_time(first) or not isinstance(gaps or [], list) or not all(map(_is_time, gaps or [])):
            source.diagnostics.skip(f"request {number}", "has invalid times")
        else:
            yield _request(start, first, gaps or [], attributes | _tokens(tokens_in, given))
    if failed:
        source.diagnostics.note(f"{failed} failed requests are skipped: the file does not have their latency")


def _request(start: int, first: float, gaps: list[float], values: dict[str, str | int]) -> ImportedRequest:
    came = [start + round(seconds * _NS) for seconds in accumulate(chain([first], gaps))]
    stages = [StageInterval("prefill", start, came[0]), StageInterval("decode", came[0], came[-1])]
    return ImportedRequest("request", start, came[-1], stages, values | {FIRST_TOKEN: came[0] - start}, came)


def _tokens(tokens_in: Any, given: Any) -> dict[str, str | int]:
    counts = {TOKENS_IN: tokens_in, TOKENS_OUT: given}
    return {key: value for key, value in counts.items() if type(value) is int and value > 0}


def _column(source: ImportFile, key: str) -> Iterator[Any]:
    """Yield the values at *key*, then None endlessly."""
    return chain(source.items(f"{key}.item", quiet=True), repeat(None))


def _starts(source: ImportFile, count: int) -> Iterator[int]:
    duration = sum(seconds for seconds in source.items("duration", quiet=True) if _is_time(seconds)) or 1.0
    start = _ended_ns(source) - round(duration * _NS)
    times = list(source.items("start_times.item", quiet=True))
    if len(times) == count and all(map(_is_number, times)) and max(times) - min(times) < _MOST_SECONDS:
        first = min(times)
        yield from (start + round((seconds - first) * _NS) for seconds in times)
        return
    source.diagnostics.note("it does not have start times of requests: they are spread evenly over the run")
    yield from (start + round(duration * number / count * _NS) for number in range(count))


def _ended_ns(source: ImportFile) -> int:
    *_, date = chain([None], source.items("date", quiet=True))
    try:
        # Local time of the machine that wrote the file; its unknown time zone is assumed to be that of this machine.
        ended = datetime.strptime(str(date), "%Y%m%d-%H%M%S").astimezone(UTC)
    except ValueError:
        source.note_undated()
        return source.ended_ns
    return int(ended.timestamp()) * _NS


def _text(source: ImportFile, key: str) -> str:
    values: list[Any] = list(source.items(key, quiet=True))
    return values[-1] if values and isinstance(values[-1], str) else ""


def _is_time(value: Any) -> bool:
    return _is_number(value) and 0 <= value < _MOST_SECONDS


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < _MOST
