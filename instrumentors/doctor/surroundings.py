"""Checks of what the machine or the container allows."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from ...core.settings.values import format_size
from ..config import AgentConfig
from .environment import Finding, Look

CGROUP = Path("/sys/fs/cgroup")
# What NVIDIA's driver makes, and its container runtime hands on.
DRIVER = Path("/dev/nvidiactl")
# What a process grew by beside its buffer (README, "What it costs").
OURS_BYTES = 4 * 1024**2


def threads(look: Look) -> Iterator[Finding]:
    """Whether a thread can be started: ours sends from one."""
    if look.interpreter and look.interpreter.thread_error:
        yield Finding(
            f"No thread can be started ({look.interpreter.thread_error}): nothing would be sent.",
            "ulimit -u, pids.max of the container; with Docker before 20.10.10: --security-opt seccomp=unconfined",
        )


def temporary(look: Look) -> Iterator[Finding]:
    """Whether there is a folder for what `stagelens run` keeps itself."""
    if not look.kept_here:
        return
    try:
        tempfile.TemporaryFile().close()
    except OSError as error:
        yield Finding(f"The run cannot be kept: {error.strerror or error}.", "TMPDIR=/a/folder/that/can/be/written")


def memory(look: Look) -> Iterator[Finding]:
    """Whether the container has room for what waits for a collector."""
    free = memory_left(CGROUP)
    buffer = AgentConfig.from_env(
        {name: value for name, value in look.environment.items() if "BUFFER" in name}
    ).buffer_bytes
    if free is not None and free < OURS_BYTES + buffer:
        yield Finding(
            f"The container has {format_size(max(free, 0))} of memory left; each process may take {format_size(OURS_BYTES + buffer)} "
            "where no collector answers.",
            "STAGELENS_BUFFER_SIZE=1MiB, or a higher limit of memory",
        )


def gpus(look: Look) -> Iterator[Finding]:
    """Whether what the GPUs do can be read where there are some."""
    if DRIVER.exists() and look.interpreter and not look.installed("nvidia-ml-py"):
        yield Finding(
            "There is a GPU, and nothing to read it with: how busy it is will not be told.",
            "pip install 'stagelens[gpu]'",
            hurts=False,
        )


def memory_left(cgroup: Path) -> int | None:
    """Return how many bytes of memory the container that *cgroup* is of has left; None where it has no limit."""
    try:
        limit, used = (cgroup / "memory.max").read_text().strip(), (cgroup / "memory.current").read_text()
        reclaimable = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    # The page cache goes when it must.
    return None if limit == "max" else int(limit) - int(used) + int(reclaimable.get("file", 0))
