"""Shared fixtures of the tests against a real Triton server."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import pytest

from stagelens.instrumentors.libraries.tritonclient import statistics
from tests.support.triton.triton_server import TraceSink, TritonServer, is_installed


@pytest.fixture(scope="session")
def traces() -> Generator[TraceSink]:
    with TraceSink() as sink:
        yield sink


@pytest.fixture(scope="session")
def triton(traces: TraceSink) -> Generator[TritonServer]:
    """Start the server once; where it is not installed its tests are skipped, never in CI."""
    if not is_installed() and not os.environ.get("CI"):
        pytest.skip("no Triton server; `make triton` installs one, and `make test-stacks` does")
    with TritonServer(traces.url) as server:
        yield server


@pytest.fixture(autouse=True)
def long_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "TIMEOUT_SECONDS", 60.0)


def _inputs(client: Any, *values: float, batch: bool = False) -> list[Any]:
    array = np.array(values or (1.0, 2.0, 3.0), np.float32)
    array = array[None] if batch else array
    tensor = client.InferInput("IN", list(array.shape), "FP32")
    tensor.set_data_from_numpy(array)
    return [tensor]


@pytest.fixture
def inputs() -> Callable[..., list[Any]]:
    """Make the input of a model: of `tritonclient.http` or `.grpc`, these numbers, perhaps as a batch of one."""
    return _inputs
