"""GPUs: values of NVML for the visible GPUs; no failure of NVML affects other parts."""

from __future__ import annotations

import logging
import threading

import pytest

from stagelens.core.hardware import (
    GPU,
    GPU_CAPPED,
    GPU_CLOCK,
    GPU_HOT,
    GPU_MEMORY,
    GPU_MEMORY_SHARE,
    GPU_POWER,
    PCIE_IN,
    PCIE_OUT,
    Measure,
)
from stagelens.instrumentors.agent.hardware import EVERY_SECONDS, RETRY_SECONDS, Gpus, visible_devices
from tests.support.fake_nvml import Card, FakeNvml


def readings_of(gpus: Gpus) -> dict[tuple[Measure, str], float]:
    return {(each.measure, each.device): each.value for each in gpus.take()}


def test_gpu_values_are_means_in_base_units() -> None:
    card = Card(busy=20, megahertz=1000, reasons=0x20)
    gpus = Gpus(FakeNvml([card]), lambda: None)

    assert gpus.read_once() == EVERY_SECONDS
    card.busy, card.megahertz, card.reasons = 60, 1500, 0x44
    gpus.read_once()
    assert readings_of(gpus) == {
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
    assert readings_of(gpus) == {}


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

    assert [each.name for each in visible_devices(nvml, visible)] == expected


def test_unsupported_gpu_values_are_omitted(caplog: pytest.LogCaptureFixture) -> None:
    nvml = FakeNvml(
        [Card(slices=[Card("MIG-1", busy=None)]), Card(error=FakeNvml.NVML_ERROR_NO_PERMISSION), Card(busy=9)]
    )
    gpus = Gpus(nvml, lambda: None)
    gpus.read_once()
    found = readings_of(gpus)

    assert (GPU, "gpu0.0") not in found
    assert (GPU_MEMORY, "gpu0.0") in found
    assert found[GPU, "gpu2"] == 0.09
    assert not [name for _, name in found if name.startswith("gpu1")]
    assert caplog.records == []


@pytest.mark.parametrize("error", [FakeNvml.NVML_ERROR_LIBRARY_NOT_FOUND, FakeNvml.NVML_ERROR_DRIVER_NOT_LOADED])
def test_a_missing_driver_is_retried_rarely_and_reports_nothing(error: int, caplog: pytest.LogCaptureFixture) -> None:
    gpus = Gpus(FakeNvml(broken=error), lambda: None)

    assert gpus.read_once() == RETRY_SECONDS
    assert readings_of(gpus) == {}
    assert caplog.records == []


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
    assert (GPU, "gpu0") in readings_of(gpus)
    assert nvml.begun == 0
    card.error = 0
    assert gpus.read_once() == EVERY_SECONDS
    assert (GPU, "gpu0") in readings_of(gpus)
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
        assert {name for _, name in readings_of(gpus)} == {"gpu1"}


def test_hidden_gpus_leave_no_driver_open() -> None:
    nvml = FakeNvml()
    gpus = Gpus(nvml, lambda: "")

    assert gpus.read_once() == RETRY_SECONDS
    assert nvml.begun == 0


def test_an_unrelated_pynvml_module_is_ignored() -> None:
    gpus = Gpus(object(), lambda: None)

    assert gpus.read_once() == RETRY_SECONDS
    assert gpus.take() == []


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
