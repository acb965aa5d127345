"""Import of results of `vllm bench serve`, with field names from its documentation and source."""

from __future__ import annotations

import time
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest

from stagelens.collector.imports.source import ImportFileError

if TYPE_CHECKING:
    from tests.collector.imports.conftest import Taking

# Fields of a result in vllm/benchmarks/serve.py, with those of --save-detailed last.
ENDED = int(time.time()) - 600
RESULT: dict[str, Any] = {
    "date": datetime.fromtimestamp(ENDED).astimezone().strftime("%Y%m%d-%H%M%S"),
    "backend": "vllm",
    "label": None,
    "model_id": "Qwen/Qwen3-0.6B",
    "tokenizer_id": "Qwen/Qwen3-0.6B",
    "num_prompts": 3,
    "request_rate": "inf",
    "duration": 4.0,
    "completed": 3,
    "total_input_tokens": 60,
    "total_output_tokens": 7,
    "request_throughput": 0.75,
    "mean_ttft_ms": 20.0,
    "input_lens": [10, 20, 30],
    "output_lens": [4, 2, 1],
    "ttfts": [0.01, 0.02, 0.03],
    "itls": [[0.001, 0.002, 0.003], [0.004], []],
    "generated_texts": ["secret", "secret", "secret"],
    "errors": ["", "", ""],
}


def test_requests_are_prefill_then_decode(taking: Taking) -> None:
    imported = taking(RESULT)

    assert (imported.requests, imported.broken_count, imported.services) == (3, 0, {"vllm": 3})
    assert taking.stages() == [
        ("vllm", {"prefill": 10_000, "decode": 6000}),
        ("vllm", {"prefill": 20_000, "decode": 4000}),
        ("vllm", {"prefill": 30_000}),
    ]
    assert taking.dimension("model") == {"Qwen/Qwen3-0.6B": 3}
    assert ENDED - 20 <= imported.first <= imported.last <= ENDED
    assert any("spread evenly" in note for note in imported.notes)
    # Prompts and outputs are not stored.
    assert b"secret" not in (taking.folder / "stagelens.db").read_bytes()


def test_start_times_are_used_if_present(taking: Taking) -> None:
    imported = taking(RESULT | {"duration": 200.0, "start_times": [5000.0, 5000.1, 5190.0]})

    assert (imported.last - imported.first) in (180, 190)
    assert imported.notes == []


@pytest.mark.parametrize("odd", [1e300, -1e300, True, "x", None])
def test_invalid_start_times_are_ignored(taking: Taking, odd: Any) -> None:
    imported = taking(RESULT | {"start_times": [0.0, odd, 2.0]})

    assert imported.requests == 3
    assert any("spread evenly" in note for note in imported.notes)


def test_failed_requests_are_omitted_and_reported(taking: Taking) -> None:
    imported = taking(RESULT | {"errors": ["", "timed out", ""]})

    assert imported.requests == 2
    assert any(note.startswith("1 failed request") for note in imported.notes)


def test_totals_without_details_are_refused_with_the_option(taking: Taking) -> None:
    with pytest.raises(ImportFileError, match="--save-detailed"):
        taking({key: value for key, value in RESULT.items() if not isinstance(value, list)})


def test_invalid_durations_are_named(taking: Taking) -> None:
    imported = taking(RESULT | {"ttfts": [0.01, -1, "x", 1e300], "itls": [[], [], [], []]})

    assert imported.requests == 1
    assert imported.broken == [f"request {number}: has invalid times" for number in (2, 3, 4)]
