"""A bounded open-loop load: real files, posted at Poisson times whether or not earlier answers have come."""

from __future__ import annotations

import argparse
import asyncio
import random
import sysconfig
import time
from pathlib import Path

import httpx

SEED = 2026
LARGE_SHARE = 0.2
SMALL_BYTES, LARGE_BYTES = range(256, 40 << 10), range(448 << 10, 1 << 20)
MAX_IN_FLIGHT = 64


def files(choice: random.Random, count: int = 400) -> list[bytes]:
    """Read *count* files of this Python's own library, 20 % of them large."""
    library = Path(sysconfig.get_path("stdlib"))
    sizes = {path: path.stat().st_size for path in sorted(library.rglob("*")) if _is_own(path, library)}
    small = [path for path, size in sizes.items() if size in SMALL_BYTES]
    large = [path for path, size in sizes.items() if size in LARGE_BYTES]
    picked = choice.choices(small, k=round(count * (1 - LARGE_SHARE))) + choice.choices(
        large, k=round(count * LARGE_SHARE)
    )
    return [path.read_bytes() for path in picked]


def _is_own(path: Path, library: Path) -> bool:
    return path.is_file() and "site-packages" not in path.relative_to(library).parts


async def drive(url: str, rate: float, seconds: float) -> None:
    """Post files to *url* at *rate* per second on average for *seconds*."""
    choice = random.Random(SEED)
    contents = files(choice)
    in_flight: set[asyncio.Task[None]] = set()
    async with httpx.AsyncClient(timeout=30, limits=httpx.Limits(max_connections=MAX_IN_FLIGHT)) as client:
        due = time.monotonic()
        end = due + seconds
        while due < end:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            if len(in_flight) < MAX_IN_FLIGHT:
                task = asyncio.create_task(post(client, url, choice.choice(contents)))
                in_flight.add(task)
                task.add_done_callback(in_flight.discard)
            due += choice.expovariate(rate)
        await asyncio.gather(*in_flight)


async def post(client: httpx.AsyncClient, url: str, content: bytes) -> None:
    """Post one file; a service that is just restarting is no news."""
    try:
        await client.post(url, content=content)
    except httpx.TransportError:
        await asyncio.sleep(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--rate", type=float, default=12, help="requests a second (default 12)")
    parser.add_argument("--seconds", type=float, default=3600, help="how long (default 3600 s)")
    options = parser.parse_args()
    try:
        asyncio.run(drive(options.url, options.rate, options.seconds))
    except KeyboardInterrupt:
        return


if __name__ == "__main__":
    main()
