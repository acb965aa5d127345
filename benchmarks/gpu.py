"""Compare reported times of GPU calls with synchronized times, and measure the cost.

    python benchmarks/gpu.py [--requests N] [--width W] [--device cuda:0]

A request copies its input to the device, runs a model and copies the answer back: PyTorch eager, by `torch.compile`, as a
CUDA graph; and ONNX Runtime with an `IOBinding`, where its CUDA provider is installed (`pip install onnxruntime-gpu`).

- ours: times of the device's own events, read after the request.
- truth: the same calls outside of any request, with the device synchronized after each, by the host's clock.
- added: additional host time of a forward of one small layer in a request.

Each is the median of runs that take turns. Goals: every stage within 2 % of the truth, at most 3 us added to a forward.

Without a CUDA device it exits with 3; `--device cpu` only tries the program itself.
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from tables import Table
from torch import nn

import stagelens
from stagelens.core.partition import partition
from stagelens.instrumentors import recorder
from stagelens.instrumentors.libraries.onnxruntime import OnnxRuntimeInstrumentor
from stagelens.instrumentors.libraries.torch import TorchInstrumentor
from stagelens.instrumentors.request_marks import read_marks

REQUESTS, WIDTH, LAYERS, WARM = 100, 4096, 4, 10
# Of the small layer: so few calls that they never wait for room in the device's queue.
ROUNDS, CALLS = 300, 100
WITHIN_PERCENT, MOST_ADDED_US = 2.0, 3.0
NO_DEVICE = 3
# Of silero-vad's voice detector: about half a minute of sound.
FRAMES, FRAME = 1000, 576

# A stage, and what makes the next value of the one before.
Step: TypeAlias = tuple[str, Callable[[Any], Any]]
# What a way to run a net is called, its input, and what makes its steps.
Way: TypeAlias = tuple[str, Any, Callable[[], Sequence[Step]]]


class Graphed(nn.Module):
    """A net as a CUDA graph, captured in a request: nothing of ours may be part of it."""

    def __init__(self, net: nn.Module, x: torch.Tensor) -> None:
        super().__init__()
        self.net = net
        self.x = x.clone()
        self.graph = torch.cuda.CUDAGraph()
        # https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs: warm up on a stream of its own.
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            net(self.x)
        torch.cuda.current_stream().wait_stream(aside)
        with stagelens.request("capture"), torch.cuda.graph(self.graph):
            self.y = net(self.x)
        recorded = "@late" in recorder.pending.pop()[0]
        print(f"captured in a request: {'MISS, events of ours are in the graph' if recorded else 'no event of ours'}")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.x.copy_(x)
        self.graph.replay()
        return self.y


def torch_ways(device: torch.device, width: int) -> Iterator[Way]:
    net = nn.Sequential(*(nn.Linear(width, width) for _ in range(LAYERS))).to(device).eval()
    x = torch.randn(width, width)
    yield "torch eager", x, lambda: _steps(net, device)
    yield "torch.compile", x, lambda: _steps(torch.compile(net), device)
    if device.type == "cuda":
        yield "CUDA graph", x, lambda: _steps(Graphed(net, x.to(device)), device)


def _steps(module: Any, device: torch.device) -> Sequence[Step]:
    return ("h2d", lambda x: x.to(device)), ("forward", module), ("d2h", lambda y: y.cpu())


def onnx_ways() -> Iterator[Way]:
    found = find_spec("silero_vad")
    if find_spec("onnxruntime") is None or found is None or found.origin is None:
        return
    import onnxruntime  # noqa: PLC0415 - not everybody has it

    provider = "CUDAExecutionProvider"
    if provider not in onnxruntime.get_available_providers():
        print(f"ONNX Runtime: left out, it has no {provider} here (pip install onnxruntime-gpu)")
        return
    path = Path(found.origin).parent / "data" / "silero_vad_16k_sequence.onnx"
    session = onnxruntime.InferenceSession(path, providers=[provider])
    binding = session.io_binding()
    for state in ("h", "c"):
        binding.bind_cpu_input(state, np.zeros((1, 1, 128), np.float32))
    for output in session.get_outputs():
        binding.bind_output(output.name, "cuda")
    yield (
        "ONNX Runtime",
        np.zeros((FRAMES, FRAME), np.float32),
        lambda: (
            ("h2d", lambda x: binding.bind_cpu_input("input", x)),
            ("forward", lambda _: session.run_with_iobinding(binding)),
            ("d2h", lambda _: binding.copy_outputs_to_cpu()),
        ),
    )


def ours(steps: Sequence[Step], x: Any) -> dict[str, float]:
    with stagelens.request("gpu"):
        for _, call in steps:
            x = call(x)
    return device_stages()


def device_stages() -> dict[str, float]:
    """Return the stages of the request that has just ended, once the device has told, in ms."""
    marks, start, end, *_ = recorder.pending.pop()
    for late in [late for key, late in zip(marks[::3], marks[1::3], strict=True) if key == "@late"]:
        while not late.ready():
            time.sleep(0.001)
        marks.extend(late.marks())
    return {stage: own / 1e6 for stage, own in partition(read_marks(marks).intervals, start, end).items()}


def truth(steps: Sequence[Step], x: Any) -> dict[str, float]:
    took: dict[str, float] = {}
    synchronize()
    for stage, call in steps:
        started = time.perf_counter_ns()
        x = call(x)
        synchronize()
        took[stage] = (time.perf_counter_ns() - started) / 1e6
    return took


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def compare(name: str, steps: Sequence[Step], x: Any, requests: int, table: Table) -> None:
    for _ in range(WARM):
        ours(steps, x)
        truth(steps, x)
    runs = [(ours(steps, x), truth(steps, x)) for _ in range(requests)]
    for stage, _ in steps:
        measured = statistics.median(run.get(stage, 0.0) for run, _ in runs)
        true = statistics.median(run[stage] for _, run in runs)
        off = 100 * (measured / true - 1)
        missed = "MISS" if abs(off) > WITHIN_PERCENT else ""
        table.row(f"{name}, {stage}", f"{measured:.3f}", f"{true:.3f}", f"{off:+.1f} %", missed)


def forward_us(device: torch.device) -> tuple[float, float]:
    """Return what the host takes for a forward of one small layer, without us and with us, in us."""
    instrumentor, net, x = TorchInstrumentor(), nn.Linear(8, 8).to(device), torch.zeros(1, 8, device=device)
    took: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(ROUNDS):
        for with_us in random.sample((False, True), 2):
            (instrumentor.instrument if with_us else instrumentor.uninstrument)()
            synchronize()
            with stagelens.request("forward"):
                started = time.perf_counter_ns()
                for _ in range(CALLS):
                    net(x)
                took[with_us].append((time.perf_counter_ns() - started) / CALLS / 1e3)
            # Its events are used again from here on, as in a service.
            device_stages()
    return statistics.median(took[False]), statistics.median(took[True])


def machine() -> str:
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    asked = shutil.which(command[0]) and subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return f"{(asked or 'no nvidia-smi').strip()}; torch {torch.__version__}, CUDA {torch.version.cuda}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=REQUESTS, help=f"of each kind and way (default: {REQUESTS})")
    parser.add_argument("--width", type=int, default=WIDTH, help=f"of the net's {LAYERS} layers (default: {WIDTH})")
    parser.add_argument("--device", type=torch.device, default="cuda", help='where it runs (default: "cuda")')
    options = parser.parse_args()
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print(
            "there is no CUDA device here, or this torch is built without CUDA: nothing was measured", file=sys.stderr
        )
        return NO_DEVICE
    if device.type == "cuda":
        # What is synchronized, and where graphs are captured.
        # `set_device` takes no device without a number.
        torch.cuda.set_device(device.index or 0)
    print(machine())
    TorchInstrumentor().instrument()
    OnnxRuntimeInstrumentor().instrument()
    # Requests stay in the queue for `device_stages`.
    recorder.background.wake_at = sys.maxsize
    table = Table(f"medians of {options.requests} requests", "ours, ms", "truth, ms", "off", "")
    with torch.inference_mode():
        for name, x, make in [*torch_ways(device, options.width), *(onnx_ways() if device.type == "cuda" else ())]:
            try:
                compare(name, make(), x, options.requests, table)
            except Exception as error:  # noqa: BLE001 - torch.compile without a compiler: the others are measured all the same
                table.note(name, f"left out, {type(error).__name__}: {str(error)[:100]}")
        without, with_us = forward_us(device)
    table.print()
    more = with_us - without
    missed = " MISS" if more > MOST_ADDED_US else ""
    print(f"added to a forward: {more:.2f} us{missed} ({without:.2f} us without us, {with_us:.2f} with us)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
