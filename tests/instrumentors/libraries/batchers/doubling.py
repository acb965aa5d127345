"""The model of all servers here, for the processes that serve it."""

from __future__ import annotations

import time
from collections.abc import Sequence

import stagelens


def double(numbers: Sequence[int]) -> list[int]:
    """Double all of a batch in 20 ms, in a request inside each that is named for all of them; a negative one fails them all."""
    name = " ".join(["batch", *(str(number) for number in sorted(numbers))])
    with stagelens.request(name), stagelens.stage("forward"):
        time.sleep(0.02)
        if min(numbers) < 0:
            raise ValueError(numbers)
    return [number * 2 for number in numbers]
