"""Print which product files run for one metrics POST until it is in SQLite, and for the percentile chart of a page.

    python -m tests.walks

Each request is made several times and the last one is followed, so that what runs once in a process does not count. A file
counts when one of its functions is called in the thread that handles the request or in the one that commits.
`docs/design/life-of-a-request.md` explains the files.
"""

from __future__ import annotations

import importlib
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from tests.support.ports import free_port

ROOT = Path(__file__).parent.parent
# Threads of other names have work of their own: status, retention, targets to scrape.
THREADS = ("stagelens-collector", "stagelens-decoder", "stagelens-writer", "stagelens-page")


class Walk:
    """Collects the functions that are called while it is on."""

    def __init__(self) -> None:
        self.is_on = False
        self.codes: dict[CodeType, None] = {}

    def follow(self, frame: FrameType, event: str, _: Any) -> None:
        if self.is_on and event == "call" and threading.current_thread().name.startswith(THREADS):
            self.codes[frame.f_code] = None

    def files(self) -> list[str]:
        paths = [Path(code.co_filename) for code in self.codes]
        inside = [path.relative_to(ROOT) for path in paths if path.is_relative_to(ROOT)]
        return list(
            dict.fromkeys(str(path) for path in inside if path.parts[0] not in {".venv", "tests", "benchmarks"})
        )


def serve(words: list[str], url: str, request: Callable[[str, int], None]) -> None:
    from stagelens.__main__ import main  # noqa: PLC0415 - only the process that is followed loads the product

    walk = Walk()

    def work() -> None:
        try:
            _wait_until_ready(url)
            for number in range(3):
                request(url, number)
            walk.is_on = True
            request(url, 3)
            walk.is_on = False
            print("\n".join(["FILES", *walk.files()]), flush=True)
        except Exception:  # noqa: BLE001 - the server runs in the other thread, and would run on
            traceback.print_exc()
            os._exit(1)
        os._exit(0)

    threading.Thread(target=work, name="walk", daemon=True).start()
    threading.setprofile(walk.follow)
    # uvicorn's loop and the dashboard's front run in the first thread.
    sys.setprofile(walk.follow)
    main(words)


def _wait_until_ready(url: str) -> None:
    while True:
        try:
            urllib.request.urlopen(f"{url}/readyz", timeout=5).read()
        except (OSError, urllib.error.HTTPError):
            time.sleep(0.05)
        else:
            return


def post_metrics(url: str, number: int) -> None:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    # Only here: it loads the product.
    agent_body = importlib.import_module("ingesting.traffic").agent_body
    data = agent_body(random.Random(number), "service-0", number, time.time_ns())
    headers = {"Content-Type": "application/x-protobuf", "Content-Encoding": "gzip"}
    urllib.request.urlopen(urllib.request.Request(f"{url}/v1/metrics", data, headers), timeout=30).read()


def get_chart(url: str, _: int) -> None:
    urllib.request.urlopen(f"{url}/figures/percentile?path=/s/service-0&from=now-1h", timeout=30).read()


WALKS: dict[str, tuple[tuple[str, ...], Callable[[str, int], None]]] = {
    "collector": (("--collector-grpc-port", "off", "--collector-port"), post_metrics),
    "dashboard": (("--dashboard-port",), get_chart),
}


def main() -> int:
    if len(sys.argv) > 1:
        part, database = sys.argv[1:]
        options, request = WALKS[part]
        port = free_port()
        serve([part, "--database", database, *options, str(port)], f"http://127.0.0.1:{port}", request)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        database = f"sqlite:///{folder}/walk.db"
        for part in WALKS:
            done = subprocess.run(
                [sys.executable, "-m", "tests.walks", part, database], capture_output=True, text=True, check=False
            )
            files = done.stdout.partition("FILES\n")[2].split()
            print(f"{part}: {len(files)} files", *(f"  {file}" for file in files), sep="\n")
            if done.returncode:
                print(done.stderr, file=sys.stderr)
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
