"""Profiles a model with torch.profiler: named ranges into FOLDER/ranges.json, steps into FOLDER/steps.json.gz.

The profiler runs in a separate process, because torch 2.13 crashes when it profiles twice in a process with other work.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

MODEL: Any = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
CPU = [ProfilerActivity.CPU]
FOLDER = Path(sys.argv[1])

with profile(activities=CPU) as ranges:
    for _ in range(3):
        with record_function("predict"):
            with record_function("preprocess"):
                inputs = torch.randn(4, 64)
            MODEL(inputs)
ranges.export_chrome_trace(str(FOLDER / "ranges.json"))


def save(steps: Any) -> None:
    steps.export_chrome_trace(str(FOLDER / "steps.json.gz"))


plan = schedule(wait=0, warmup=1, active=3, repeat=1)
with profile(activities=CPU, schedule=plan, on_trace_ready=save) as steps:
    for _ in range(4):
        with record_function("tokenize"):
            inputs = torch.ones(4, 64)
        MODEL(inputs)
        steps.step()
