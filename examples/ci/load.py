"""Puts load on a service: waits until it answers, then asks so many times, over four connections at once.

Use whatever you test load with instead; ask base and head for the same, and as often.
"""

from __future__ import annotations

import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

AT_ONCE = 4
START_SECONDS = 60


def main(url: str, requests: int) -> None:
    wait_until_it_answers(url)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for _ in pool.map(ask, [url] * requests):
            pass


def wait_until_it_answers(url: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            return ask(url)
        except (urllib.error.URLError, ConnectionError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def ask(url: str) -> None:
    with urllib.request.urlopen(url, timeout=30) as response:
        response.read()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
