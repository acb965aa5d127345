"""Program whose output is read continuously, so that a test can wait for a text."""

from __future__ import annotations

import re
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class Printing:
    def __init__(self, command: Sequence[str | Path], **options: Any) -> None:
        self.lines: list[str] = []
        self._more = threading.Condition()
        self._ended = False
        self.process: subprocess.Popen[str] = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", **options
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_for(self, pattern: str, seconds: float = 60) -> re.Match[str]:
        """Return the first line that *pattern* is found in, as soon as it is printed."""
        deadline = time.monotonic() + seconds
        seen = 0
        with self._more:
            while True:
                for line in self.lines[seen:]:
                    if match := re.search(pattern, line):
                        return match
                seen = len(self.lines)
                left = deadline - time.monotonic()
                if self._ended or left <= 0:
                    raise AssertionError(f"it never said {pattern!r}:\n" + "\n".join(self.lines))
                self._more.wait(left)

    def wait(self, seconds: float = 60) -> int:
        code = self.process.wait(seconds)
        # What it started may hold its output open.
        self._reader.join(seconds)
        return code

    def kill(self) -> None:
        self.process.kill()
        self.wait()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as output:
            for line in output:
                with self._more:
                    self.lines.append(line.rstrip("\n"))
                    self._more.notify_all()
        with self._more:
            self._ended = True
            self._more.notify_all()
