"""Hardware metrics: those of the process, memory of torch, which is never initialized for them, and GPUs by NVML."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagelens.core.hardware import (
    CPU,
    CPU_SHARE,
    GPU,
    GPU_CAPPED,
    GPU_CLOCK,
    GPU_HOT,
    GPU_MEMORY,
    GPU_MEMORY_SHARE,
    GPU_POWER,
    HOST_CPU,
    LOOP_LAG,
    MEMORY,
    PCIE_IN,
    PCIE_OUT,
    THREADS,
    THROTTLED,
    TORCH_ALLOCATED,
    TORCH_RESERVED,
    Measure,
)
from stagelens.instrumentors import stalls
from stagelens.instrumentors.agent import hardware
from stagelens.instrumentors.agent.hardware import (
    EVERY_SECONDS,
    RETRY_SECONDS,
    Gpus,
    Hardware,
    ProcessMetrics,
    available_cpus,
    torch_memory,
    visible_devices,
)
from stagelens.instrumentors.stalls import LoopLag
from tests.support.fake_nvml import Card, FakeNvml

S = 10**9
FILES = {
    "/proc/stat": "cpu  100 0 50 800 50 0 0 0 0 0\ncpu0 1 1 1 1\n",
    "/proc/self/stat": f"7 (a ) b) S {' '.join(map(str, range(4, 53)))}",
    "/proc/self/cgroup": "1:name=systemd:/x\n0::/pod\n",
    "/sys/fs/cgroup/pod/cpu.max": "150000 100000\n",
    "/sys/fs/cgroup/pod/cpu.stat": "usage_usec 5\nnr_periods 100\nnr_throttled 10\n",
}


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
def clocks(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Clocks of a process, in nanoseconds, that a test advances."""
    made = SimpleNamespace(wall=0, cpu=0)
    functions = SimpleNamespace(monotonic_ns=lambda: made.wall, process_time_ns=lambda: made.cpu)
    monkeypatch.setattr(hardware, "time", functions)
    return made


@pytest.mark.usefixtures("files")
def test_the_cpu_time_is_what_the_process_used(clocks: SimpleNamespace) -> None:
    source = ProcessMetrics()
    clocks.wall, clocks.cpu = 2 * S, 3 * S
    first = readings_of(source)
    clocks.wall, clocks.cpu = 6 * S, 4 * S

    assert first[CPU] == 1.5
    assert readings_of(source)[CPU] == 0.25
    assert first[CPU_SHARE] == pytest.approx(1.5 / available_cpus())


def test_a_container_reports_its_memory_threads_cpu_limit_and_throttling(files: dict[str, str]) -> None:
    source = ProcessMetrics()
    files["/sys/fs/cgroup/pod/cpu.stat"] = "usage_usec 9\nnr_periods 150\nnr_throttled 50\n"
    files["/proc/stat"] = "cpu  170 0 60 815 55 0 0 0 0 0\n"
    found = readings_of(source)

    assert (found[THROTTLED], found[HOST_CPU]) == (0.8, 0.8)
    assert (found[MEMORY], found[THREADS]) == (24 * os.sysconf("SC_PAGE_SIZE"), 20)
    assert available_cpus() == min(1.5, available_cpus())

    # Less iowait than before, and the paths of the host instead of those of the container.
    files["/proc/stat"] = "cpu  180 0 60 815 54 0 0 0 0 0\n"
    files["/sys/fs/cgroup/cpu.max"] = files.pop("/sys/fs/cgroup/pod/cpu.max").replace("150000", "50000")

    assert readings_of(source)[HOST_CPU] == 1
    assert available_cpus() == 0.5


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
def test_a_too_short_interval_is_merged_into_the_next(clocks: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "MIN_SECONDS", 1.0)
    source = ProcessMetrics()
    clocks.wall = clocks.cpu = S // 2

    assert readings_of(source) == {}
    clocks.wall = S
    assert readings_of(source)[CPU] == 0.5


def test_the_lag_is_the_maximum_since_the_last_reading() -> None:
    lateness = LoopLag()
    for number in (3, 5, 4):
        lateness.note(number)

    assert [lateness.take(), lateness.take()] == [5, None]


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


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_a_failing_source_drops_only_its_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "MIN_SECONDS", 0.0)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: 1 / 0)))

    assert {CPU, MEMORY, THREADS} <= {each.measure for each in Hardware().take() if each.value}


def gpu_readings(gpus: Gpus) -> dict[tuple[Measure, str], float]:
    return {(each.measure, each.device): each.value for each in gpus.take()}


def test_gpu_values_are_means_in_base_units() -> None:
    card = Card(busy=20, megahertz=1000, reasons=0x20)
    gpus = Gpus(FakeNvml([card]), lambda: None)

    assert gpus.read_once() == EVERY_SECONDS
    card.busy, card.megahertz, card.reasons = 60, 1500, 0x44
    gpus.read_once()
    assert gpu_readings(gpus) == {
        (GPU, "gpu0"): pytest.approx(0.4),
        (GPU_MEMORY, "gpu0"): 20 * 2**30,
        (GPU_MEMORY_SHARE, "gpu0"): 0.25,
        (GPU_POWER, "gpu0"): 285.5,
        (GPU_CLOCK, "gpu0"): 1.25e9,
        (GPU_HOT, "gpu0"): 1.0,
        (GPU_CAPPED, "gpu0"): 0.5,
        (PCIE_IN, "gpu0"): 3_000_000,
        (PCIE_OUT, "gpu0"): 1_000_000,
    }
    assert gpu_readings(gpus) == {}


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, ["gpu0", "gpu1", "gpu2.0", "gpu2.1"]),
        ("1,0", ["gpu1", "gpu0"]),
        ("GPU-b", ["gpu1"]),
        (" 0 , 1 ", ["gpu0", "gpu1"]),
        ("0,9,1", ["gpu0"]),
        ("MIG-3f1a-22", ["mig-3f1a-22"]),
        ("MIG-gone", []),
        ("", []),
        ("-1", []),
        ("nonsense", []),
    ],
)
def test_a_process_reports_its_visible_gpus(visible: str | None, expected: list[str]) -> None:
    slices = [Card("MIG-3f1a-21"), Card("MIG-3f1a-22")]
    nvml = FakeNvml([Card("GPU-a1"), Card("GPU-b2"), Card("GPU-c3", slices=slices)])
    nvml.nvmlInit()

    assert [device.name for device in visible_devices(nvml, visible)] == expected


def test_unsupported_gpu_values_are_omitted(caplog: pytest.LogCaptureFixture) -> None:
    nvml = FakeNvml(
        [Card(slices=[Card("MIG-1", busy=None)]), Card(error=FakeNvml.NVML_ERROR_NO_PERMISSION), Card(busy=9)]
    )
    gpus = Gpus(nvml, lambda: None)
    gpus.read_once()
    found = gpu_readings(gpus)

    assert (GPU, "gpu0.0") not in found
    assert (GPU_MEMORY, "gpu0.0") in found
    assert found[GPU, "gpu2"] == 0.09
    assert not [name for _, name in found if name.startswith("gpu1")]
    assert caplog.records == []


@pytest.mark.parametrize(
    ("nvml", "visible"),
    [
        (FakeNvml(broken=FakeNvml.NVML_ERROR_LIBRARY_NOT_FOUND), None),
        (FakeNvml(broken=FakeNvml.NVML_ERROR_DRIVER_NOT_LOADED), None),
        (FakeNvml(), ""),
        (object(), None),
    ],
    ids=["no library", "no driver", "hidden", "another module of the name"],
)
def test_a_missing_driver_is_retried_rarely_and_reports_nothing(
    nvml: Any, visible: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    gpus = Gpus(nvml, lambda: visible)

    assert gpus.read_once() == RETRY_SECONDS
    assert gpu_readings(gpus) == {}
    assert caplog.records == []
    assert getattr(nvml, "begun", 0) == 0


def test_a_lost_driver_is_logged_once_and_found_again(caplog: pytest.LogCaptureFixture) -> None:
    card = Card()
    nvml = FakeNvml([card])
    gpus = Gpus(nvml, lambda: None)
    gpus.read_once()
    card.error = FakeNvml.NVML_ERROR_GPU_IS_LOST
    with caplog.at_level(logging.WARNING, logger="stagelens"):
        waits = [gpus.read_once(), gpus.read_once()]

    assert waits == [RETRY_SECONDS] * 2
    assert [record.getMessage() for record in caplog.records] == [
        "stagelens: GPUs can no longer be read; GPU metrics are missing; retrying every 5 minutes"
    ]
    assert (GPU, "gpu0") in gpu_readings(gpus)
    assert nvml.begun == 0
    card.error = 0
    assert gpus.read_once() == EVERY_SECONDS
    assert (GPU, "gpu0") in gpu_readings(gpus)
    assert nvml.begun == 1


def test_a_lost_gpu_does_not_affect_other_gpus() -> None:
    lost = Card(busy=1)
    nvml = FakeNvml([lost, Card(busy=2)])
    before = Gpus(nvml, lambda: None)
    before.read_once()
    before.take()
    lost.error = FakeNvml.NVML_ERROR_GPU_IS_LOST
    later = Gpus(nvml, lambda: None)

    for gpus in (before, later):
        assert gpus.read_once() == EVERY_SECONDS
        assert {name for _, name in gpu_readings(gpus)} == {"gpu1"}


def test_without_the_extra_there_is_no_thread() -> None:
    before = set(threading.enumerate())
    Gpus(None).watch()

    assert "stagelens-gpus" not in [thread.name for thread in set(threading.enumerate()) - before]


def test_gpu_readings_run_in_a_separate_thread() -> None:
    asked, unblocked = threading.Event(), threading.Event()

    class Hanging(FakeNvml):
        def nvmlInit(self) -> None:  # noqa: N802 - NVML's name
            asked.set()
            unblocked.wait(60)
            raise self.NVMLError(self.NVML_ERROR_GPU_IS_LOST)

    gpus = Gpus(Hanging(), lambda: None)
    gpus.watch()

    assert asked.wait(60)
    assert gpus.take() == []
    unblocked.set()
