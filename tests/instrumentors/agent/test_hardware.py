"""Process metrics of the agent: real values, and memory of torch, which is never initialized for them."""

from __future__ import annotations

import ast
import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagelens.core.hardware import (
    CPU,
    CPU_SHARE,
    HOST_CPU,
    LOOP_LAG,
    MEMORY,
    THREADS,
    THROTTLED,
    TORCH_ALLOCATED,
    TORCH_RESERVED,
    Measure,
)
from stagelens.instrumentors import stalls
from stagelens.instrumentors.agent import hardware
from stagelens.instrumentors.agent.hardware import Hardware, ProcessMetrics, available_cpus, torch_memory
from stagelens.instrumentors.stalls import LoopLag

FILES = {
    "/proc/stat": "cpu  100 0 50 800 50 0 0 0 0 0\ncpu0 1 1 1 1\n",
    "/proc/self/stat": f"7 (a ) b) S {' '.join(map(str, range(4, 53)))}",
    "/proc/self/cgroup": "1:name=systemd:/x\n0::/pod\n",
    "/sys/fs/cgroup/pod/cpu.max": "150000 100000\n",
    "/sys/fs/cgroup/pod/cpu.stat": "usage_usec 5\nnr_periods 100\nnr_throttled 10\n",
}


class Clocks:
    """Clocks of a process, in nanoseconds, that a test advances."""

    def __init__(self) -> None:
        self.wall = self.cpu = 0

    def go_on(self, wall_seconds: float, cpu_seconds: float) -> None:
        self.wall += round(wall_seconds * 1e9)
        self.cpu += round(cpu_seconds * 1e9)


def readings_of(source: ProcessMetrics) -> dict[Measure, float]:
    return {each.measure: each.value for each in source.take()}


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Machine with these file contents; missing files are empty."""
    found = dict(FILES)
    monkeypatch.setattr(hardware, "_read_file", lambda path: found.get(path, ""))
    monkeypatch.setattr(hardware, "MIN_SECONDS", 0.0)
    # Loops of other tests may have lagged.
    monkeypatch.setattr(stalls.loop_lag, "_worst_ns", -1)
    return found


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    made = Clocks()
    clocks = SimpleNamespace(monotonic_ns=lambda: made.wall, process_time_ns=lambda: made.cpu)
    monkeypatch.setattr(hardware, "time", clocks)
    return made


@pytest.mark.usefixtures("files")
def test_the_cpu_time_is_what_the_process_used(clocks: Clocks) -> None:
    source = ProcessMetrics()
    clocks.go_on(2, 3)
    first = readings_of(source)
    clocks.go_on(4, 1)

    assert first[CPU] == 1.5
    assert readings_of(source)[CPU] == 0.25
    assert first[CPU_SHARE] == pytest.approx(1.5 / available_cpus())


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_memory_and_threads_are_those_of_the_process(files: dict[str, str]) -> None:
    found = readings_of(ProcessMetrics())

    assert found[MEMORY] == 24 * os.sysconf("SC_PAGE_SIZE")
    assert found[THREADS] == 20
    assert files


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_real_kernel_files_are_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "MIN_SECONDS", 0.0)
    found = readings_of(ProcessMetrics())

    assert found[MEMORY] > 0
    assert found[THREADS] >= 1


def test_a_container_reports_its_cpu_limit_and_throttling(files: dict[str, str]) -> None:
    source = ProcessMetrics()
    files["/sys/fs/cgroup/pod/cpu.stat"] = "usage_usec 9\nnr_periods 150\nnr_throttled 50\n"
    files["/proc/stat"] = "cpu  170 0 60 815 55 0 0 0 0 0\n"
    found = readings_of(source)

    assert found[THROTTLED] == 0.8
    assert found[HOST_CPU] == 0.8
    assert found[THREADS] == 20
    assert available_cpus() == min(1.5, available_cpus())


@pytest.mark.parametrize("folder", ["/sys/fs/cgroup/cpu,cpuacct/pod", "/sys/fs/cgroup/cpu/pod", "/sys/fs/cgroup/cpu"])
def test_a_container_of_cgroup_version_1_reports_them_too(files: dict[str, str], folder: str) -> None:
    files.clear()
    files["/proc/self/cgroup"] = "4:memory:/pod\n1:cpu,cpuacct:/pod\n0::/\n"
    files[f"{folder}/cpu.cfs_quota_us"], files[f"{folder}/cpu.cfs_period_us"] = "50000\n", "100000\n"
    files[f"{folder}/cpu.stat"] = "nr_periods 100\nnr_throttled 10\nthrottled_time 5\n"
    source = ProcessMetrics()
    files[f"{folder}/cpu.stat"] = "nr_periods 120\nnr_throttled 15\nthrottled_time 9\n"

    assert readings_of(source)[THROTTLED] == 0.25
    assert available_cpus() == 0.5
    files[f"{folder}/cpu.cfs_quota_us"] = "-1\n"
    assert available_cpus() >= 1


@pytest.fixture
def limited_group() -> Iterator[Path]:
    name = f"stagelens-test-{os.getpid()}"
    version_1 = Path("/sys/fs/cgroup/cpu")
    group = (version_1 if version_1.is_dir() else Path("/sys/fs/cgroup")) / name
    try:
        group.mkdir()
        if version_1.is_dir():
            (group / "cpu.cfs_period_us").write_text("50000")
            (group / "cpu.cfs_quota_us").write_text("10000")
        else:
            (group / "cpu.max").write_text("10000 50000")
    except OSError as error:
        if group.is_dir():
            group.rmdir()
        pytest.skip(f"control groups cannot be created: {error}")
    yield group
    group.rmdir()


def test_the_kernel_throttles_a_container_and_its_agent_says_so(limited_group: Path) -> None:
    program = """
from stagelens.instrumentors.agent.hardware import ProcessMetrics, available_cpus
import time
open(GROUP + "/cgroup.procs", "w").write("0")
source, end = ProcessMetrics(), time.process_time() + 0.3
while time.process_time() < end:
    pass
print({each.measure.key: each.value for each in source.take()} | {"cpus": available_cpus()})
"""
    ran = subprocess.run(
        [sys.executable, "-c", program.replace("GROUP", repr(str(limited_group)))],
        capture_output=True,
        text=True,
        check=True,
    )
    found = ast.literal_eval(ran.stdout)

    assert found["cpus"] == pytest.approx(0.2)
    assert found[THROTTLED.key] > 0


def test_machine_utilization_is_at_most_one(files: dict[str, str]) -> None:
    source = ProcessMetrics()
    files["/proc/stat"] = "cpu  110 0 50 800 49 0 0 0 0 0\n"

    assert readings_of(source)[HOST_CPU] == 1


def test_a_container_with_host_cgroup_paths_is_found(files: dict[str, str]) -> None:
    files["/sys/fs/cgroup/cpu.max"] = files.pop("/sys/fs/cgroup/pod/cpu.max").replace("150000", "50000")

    assert available_cpus() == 0.5


def test_cpu_time_is_reported_without_any_file(files: dict[str, str]) -> None:
    files.clear()

    assert set(readings_of(ProcessMetrics())) == {CPU, CPU_SHARE}


@given(st.dictionaries(st.sampled_from(sorted(FILES)), st.text(max_size=60)))
def test_any_file_content_raises_nothing(garbage: dict[str, str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hardware, "MIN_SECONDS", 0.0)
        machine = Hardware()
        patch.setattr(hardware, "_read_file", lambda path: garbage.get(path, ""))

        assert all(0 <= each.value < float("inf") for each in machine.take())


@pytest.mark.usefixtures("files")
def test_a_too_short_interval_is_merged_into_the_next(clocks: Clocks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "MIN_SECONDS", 1.0)
    source = ProcessMetrics()
    clocks.go_on(0.5, 0.5)

    assert readings_of(source) == {}
    clocks.go_on(0.5, 0)
    assert readings_of(source)[CPU] == 0.5


@given(st.lists(st.integers(0, 10**9)))
def test_the_lag_is_the_maximum_since_the_last_reading(late: list[int]) -> None:
    lateness = LoopLag()
    for each in late:
        lateness.note(each)

    assert lateness.take() == max(late, default=None)
    assert lateness.take() is None


@pytest.mark.usefixtures("files")
def test_a_late_timer_is_the_lag_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    source, loop = ProcessMetrics(), asyncio.new_event_loop()
    monkeypatch.setattr(stalls, "clock", lambda: 190_000_000)
    stalls._heartbeat(loop, 100_000_000, stalls.ThreadStatistics(), (0, 0))  # pyright: ignore[reportPrivateUsage] - how late it is is given
    loop.close()

    assert readings_of(source)[LOOP_LAG] == 0.09


def test_torch_is_queried_only_when_it_uses_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    state = SimpleNamespace(initialized=False)
    stats = {"allocated_bytes.all.current": 5, "reserved_bytes.all.current": 7, "reserved_bytes.all.peak": 9}

    def memory_stats(device: int) -> dict[str, int]:
        assert state.initialized
        return stats if device == 1 else {}

    cuda = SimpleNamespace(is_initialized=lambda: state.initialized, device_count=lambda: 2, memory_stats=memory_stats)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    nothing = list(torch_memory())
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))

    assert nothing == list(torch_memory()) == []
    state.initialized = True
    assert list(torch_memory()) == [(TORCH_ALLOCATED, 5, "cuda:1"), (TORCH_RESERVED, 7, "cuda:1")]


def test_a_failing_source_drops_only_its_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "MIN_SECONDS", 0.0)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: 1 / 0)))

    assert CPU in {each.measure for each in Hardware().take()}
