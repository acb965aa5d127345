"""One target under atheris, which looks for inputs that reach new code: `python -m tests.fuzz.coverage_guided TARGET CORPUS [libFuzzer's options]`.

A program of its own: atheris changes the modules it is to watch while they are imported, and ends the process by itself.
"""

from __future__ import annotations

import logging
import random
import sys

import atheris

with atheris.instrument_imports(include=["stagelens"]):  # pyright: ignore[reportAttributeAccessIssue] - it has
    from tests.fuzz.targets import TARGETS


def main(name: str, arguments: list[str]) -> None:
    target = TARGETS[name]
    logging.disable()  # damaged parcels are logged, and there are many

    def mutated(data: bytes, most: int, seed: int) -> bytes:
        rng = random.Random(seed)
        return target.draw(rng)[:most] if rng.random() < 0.1 else atheris.Mutate(data, most)

    atheris.Setup([sys.argv[0], *arguments], target.check, custom_mutator=mutated)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
