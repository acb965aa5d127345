"""Terminal of a reader: executes the commands of a page in sequence, in a separate directory."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

HERE = Path(__file__).parent
# A server on a busy machine takes long to start, and numbers come after the next export.
TIMEOUT_SECONDS = 400
PAUSE_SECONDS = 0.05
# Where a server listens when it is ready, as the pages write it: a service, and the dashboard, which starts last.
READY = (8000, 8600)
MAX_TAIL_CHARS = 8000
# Instead of the hundreds that a percentile needs.
REQUESTS = 40
# Commands that change the shell: its directory, its variables, its virtual environment.
_CHANGES_SHELL = re.compile(r"(?:^|&& )(?:cd|export|\.) ")


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Terminal:
    def __init__(self, folder: Path, ports: Mapping[int, int], environment: Mapping[str, str]) -> None:
        self.folder = folder
        self._ports = ports
        self._environment = {**os.environ, **environment}
        self._directory = folder
        first = (str(HERE / "shims"), environment.get("PATH", ""), str(Path(sys.executable).parent))
        self._environment["PATH"] = os.pathsep.join(filter(None, (*first, os.environ.get("PATH", ""))))
        self._new = self._environment
        self._running: list[subprocess.Popen[bytes]] = []
        self._servers: list[Path] = []
        self.printed: list[Path] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running:
            os.killpg(process.pid, signal.SIGTERM)
        for process in self._running:
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def open_window(self) -> None:
        """Continue in *folder* with the first environment, as in a new window; servers keep running."""
        self._directory, self._environment = self.folder, self._new
        self.printed = []

    def rewrite(self, text: str) -> str:
        written = "|".join(str(port) for port in self._ports)
        text = re.sub(rf"\b({written})\b", lambda found: str(self._ports[int(found[0])]), text)
        return re.sub(r"\[1-\d+\]", f"[1-{REQUESTS}]", text)

    def type(self, command: str) -> str:
        if _CHANGES_SHELL.search(command):
            self._change_shell(command)
            return ""
        closed = [port for written, port in self._ports.items() if written in READY and not is_open(port)]
        printed = self.folder / f".printed-{len(list(self.folder.glob('.printed-*')))}"
        self.printed.append(printed)
        with printed.open("wb") as output:
            process = subprocess.Popen(
                ["bash", "-c", self.rewrite(command).removesuffix(" &")],
                cwd=self._directory,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while process.poll() is None:
            if any(is_open(port) for port in closed):
                self._running.append(process)
                self._servers.append(printed)
                return printed.read_text()
            if time.monotonic() > deadline:
                self._running.append(process)
                break
            time.sleep(PAUSE_SECONDS)
        text = printed.read_text()

        # A command often fails because a server that was started before it has failed.
        servers = [server.read_text()[-MAX_TAIL_CHARS:] for server in self._servers]

        assert process.returncode == 0, "\n".join(
            (f"$ {command}", text, f"(ended with {process.returncode}; what its servers printed follows)", *servers)
        )

        return text

    def _change_shell(self, command: str) -> None:
        done = subprocess.run(
            ["bash", "-c", f"set -ea; {command}; pwd; env -0"],
            cwd=self._directory,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

        assert done.returncode == 0, f"$ {command}\n{done.stdout}\n{done.stderr}"

        directory, _, variables = done.stdout.partition("\n")
        self._directory = Path(directory)
        self._environment = dict(line.split("=", 1) for line in variables.split("\0") if line)
