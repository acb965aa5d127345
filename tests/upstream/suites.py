"""The suites of `suites.toml`, each with a virtual environment of its own."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
import tarfile
import time
import tomllib
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
WORK = ROOT / ".venv" / "upstream"
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "--quiet")


@dataclass(frozen=True, slots=True)
class Suite:
    """The tests of a library.

    Args:
        name: Name of the library.
        title: Name in the table.
        version: Version under test; "" for that of Python.
        source: Where the tests are: the "sdist" of the library, the "wheel" that is installed, or "python" itself.
        install: Requirements beside the library; for the latter, extras begin with a bracket.
        pytest: Arguments of pytest; none if the tests have a command of their own.
        command: That command: a file, or `-m` and a module, with arguments.
        server: Server that the tests need: the command, and last its TCP port.
        folder: Folder of the sdist in which the command runs.
        remove: Parts of the sdist that hide the installed library.
        counts_spans: Whether the tests count what an OpenTelemetry SDK exports: the agent exports retained traces to it, too.
        left_out: Reasons by patterns of the names of tests that do not run.
        differences: Reasons by patterns of the names of tests that the agent changes, as documented.
        hang_seconds: Time after which a test hangs. [seconds]
    """

    name: str
    title: str
    version: str = ""
    source: str = "sdist"
    install: Sequence[str] = ()
    pytest: Sequence[str] = ()
    command: Sequence[str] = ()
    server: Sequence[str] = ()
    folder: str = "."
    remove: Sequence[str] = ()
    counts_spans: bool = False
    left_out: Mapping[str, str] = field(default_factory=dict[str, str])
    differences: Mapping[str, str] = field(default_factory=dict[str, str])
    hang_seconds: int = 90

    @property
    def work(self) -> Path:
        return WORK / self.name

    @property
    def python(self) -> Path:
        return self.work / "env" / "bin" / "python"

    @property
    def cwd(self) -> Path:
        return self.work / "source" / self.folder

    def python_version(self) -> str:
        command = [self.python, "-c", "import platform; print(platform.python_version())"]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()

    def arguments(self) -> list[str]:
        if self.command:
            return [str(HERE / "inside" / "harness.py"), *self.command]
        # Their own options ask for coverage, several processes, and the like.
        settings = ("-p", "harness_pytest", "-p", "no:cacheprovider", "-o", "verbosity_assertions=2", "-o", "addopts=")
        return ["-m", "pytest", *settings, "--continue-on-collection-errors", *self.pytest]

    def prepare(self, wheel: Path, python: str) -> None:
        pinned = f"{self.name}=={self.version}" if self.version else ""
        requirements = [f"{self.name}{each}=={self.version}" if each[0] == "[" else each for each in self.install]
        wanted = "\n".join([python, self.source, pinned, *requirements, *self.remove])
        stamp = self.work / "prepared"
        if not stamp.exists() or stamp.read_text() != wanted:
            shutil.rmtree(self.work, ignore_errors=True)
            subprocess.run([python, "-m", "venv", "--without-pip", self.work / "env"], check=True)
            self._install(*filter(None, [pinned, *requirements]), *(() if self.command else ("pytest",)), str(wheel))
            (self.work / "source").mkdir()
            # Else pytest would read our own, where the suite has none.
            (WORK / "pytest.ini").touch()
            if self.source == "sdist":
                self._unpack(pinned)
            stamp.write_text(wanted)
        self._install("--force-reinstall", "--no-deps", str(wheel))

    @contextmanager
    def serving(self) -> Generator[None]:
        if not self.server:
            yield
            return
        with subprocess.Popen(self.server, cwd=self.work, stdout=subprocess.DEVNULL) as server:
            try:
                while socket.socket().connect_ex(("127.0.0.1", int(self.server[-1]))):
                    time.sleep(0.05)
                yield
            finally:
                server.terminate()

    def _install(self, *requirements: str) -> None:
        subprocess.run([*PIP, "--python", self.python, "install", "--no-compile", *requirements], check=True)

    def _unpack(self, pinned: str) -> None:
        downloads = WORK / "downloads" / pinned
        if not list(downloads.glob("*.tar.gz")):
            sdist_only = ("--no-deps", "--no-binary", self.name, "--dest", downloads)
            subprocess.run([*PIP, "download", *sdist_only, pinned], check=True)
        (archive,) = downloads.glob("*.tar.gz")
        with tarfile.open(archive) as sdist:
            sdist.extractall(self.work / "unpacked", filter="data")
        (folder,) = (self.work / "unpacked").iterdir()
        shutil.rmtree(self.work / "source")
        folder.rename(self.work / "source")
        for part in self.remove:
            shutil.rmtree(self.work / "source" / part)


def read_suites(word: str) -> list[Suite]:
    entries: dict[str, dict[str, Any]] = tomllib.loads((HERE / "suites.toml").read_text())
    selected = {name: entry for name, entry in entries.items() if re.search(word, name)}
    return [Suite(name, entry.pop("title", name), **entry) for name, entry in selected.items()]


@contextmanager
def built_wheel() -> Generator[Path]:
    with TemporaryDirectory() as folder:
        try:
            subprocess.run([*PIP, "wheel", "--no-deps", "--wheel-dir", folder, ROOT], check=True)
        finally:
            shutil.rmtree(ROOT / "build", ignore_errors=True)
        yield next(Path(folder).iterdir())
