"""Import of Triton's JSON traces.

files/triton.json is of a real Triton 24.10 with the models of tests/support/triton, one call of each kind of its capture.py and three
more of `plain`, started with `--trace-config mode=triton --trace-config triton,file=triton.json --trace-config level=TIMESTAMPS
--trace-config rate=1`.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.collector.imports.conftest import Taking

REAL = Path(__file__).parent / "files" / "triton.json"
RECORDS: list[dict[str, Any]] = json.loads(REAL.read_text())


def test_a_real_trace_has_the_requests_and_the_stages_that_triton_timed(taking: Taking) -> None:
    imported = taking(REAL)
    timestamps = {
        record["timestamps"][0]["name"]: record["timestamps"][0]["ns"]
        for record in RECORDS
        if record["id"] == 1 and "timestamps" in record
    }

    assert (imported.requests, imported.broken_count) == (10, 0)
    assert imported.services == Counter({"triton-inference-server": 10})
    # An ensemble is one request of the called model.
    assert taking.dimension("model") == {"plain": 4, "batched": 3, "twice": 1, "stream": 1, "failing": 1}
    # Times without a date end at the modification time.
    assert imported.last <= REAL.stat().st_mtime < imported.last + 20
    assert any("no date" in note for note in imported.notes)
    first = min(taking.stages(), key=lambda each: abs(each[1]["h2d"] - 203))[1]
    assert first["h2d"] == round((timestamps["COMPUTE_INPUT_END"] - timestamps["COMPUTE_START"]) / 1e3)
    assert first["forward"] == round((timestamps["COMPUTE_OUTPUT_START"] - timestamps["COMPUTE_INPUT_END"]) / 1e3)
    assert first["queue"] == round((timestamps["COMPUTE_START"] - timestamps["QUEUE_START"]) / 1e3)


@pytest.mark.parametrize(
    "broken",
    [
        *(7, "text", None, {"id": "x"}, {"id": 1, "timestamps": 5}, {"id": 1, "timestamps": [5]}),
        *({"id": 1, "timestamps": [{"name": "REQUEST_START", "ns": ns}]} for ns in (-1, 1.5, "1")),
    ],
)
def test_an_invalid_record_is_named_and_skipped_alone(taking: Taking, broken: Any) -> None:
    imported = taking([*RECORDS[:3], broken, *RECORDS[3:]])

    assert imported.requests == 10
    assert imported.broken == ["record 4: is not a record of a Triton trace"]


def test_an_unfinished_request_is_omitted_and_named(taking: Taking) -> None:
    ends = [record for record in RECORDS if any(at["name"] == "REQUEST_END" for at in record.get("timestamps", []))]
    imported = taking([record for record in RECORDS if record not in ends or record["id"] not in (1, 7)])

    assert imported.requests == 9
    assert imported.broken == ["trace 1: has no REQUEST_END: the request was not over yet"]


def test_circular_parents_are_omitted(taking: Taking) -> None:
    model = {"model_name": "m", "model_version": 1}

    assert taking([{"id": 1, "parent_id": 2, **model}, {"id": 2, "parent_id": 1, **model}]).requests == 0
