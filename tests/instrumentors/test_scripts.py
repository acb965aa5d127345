"""Plain scripts: each outermost call of a model library is a request, in processes without a server."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.instrumentors.conftest import Sink

# Prints route, error and stages of each request.
REPORT = """
import atexit, sys
import stagelens
from stagelens.instrumentors import recorder
stagelens.instrument()
recorder.background.wake_at = sys.maxsize
def report():
    for marks, _, _, route, error, _, kind in recorder.pending:
        print(kind, route, error or "-", *(key for key in marks[3::3] if not key.startswith("@")))
atexit.register(report)
"""
SESSION = """
import numpy as np, onnxruntime
from magika import Magika
magika = Magika()
"""
# Three models with a class, and thus a route, each.
TORCH = """
import threading
import torch
def model(name):
    return type(name, (torch.nn.Sequential,), {})(torch.nn.Linear(2, 2), torch.nn.ReLU())
x = torch.ones(1, 2)
trained = model("Trained")
trained(x).sum().backward()
with torch.no_grad():
    trained(x)
    torch.nn.MSELoss()(x, x)
trained.eval()
trained(x)
try:
    model("Failing").eval()(torch.ones(1, 3))
except RuntimeError as error:
    print("raised")
shared = model("Shared").eval()
shared(x)
threads = [threading.Thread(target=shared, args=(x,)) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""


def requests_of(code: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", REPORT + code], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


CALL = "magika.identify_bytes(b'import os\\n' * 9)"
LOAD, FORWARD = (f"internal standard_v3_3 - {stage}" for stage in ("load", "forward"))
# A pipe between processes, and a port of a notebook.
PORTS = """
import socket, sys, tempfile
pipe = socket.socket(socket.AF_UNIX)
pipe.bind(tempfile.mkdtemp() + "/pipe")
pipe.listen()
sys.modules["ipykernel"] = sys
port = socket.create_server(("127.0.0.1", 0))
"""


@pytest.mark.parametrize(
    ("code", "requests"),
    [
        (f"for _ in range(3): {CALL}", [LOAD, FORWARD, FORWARD]),
        (f"{PORTS}{CALL}", [LOAD]),
        # A part of Django that other libraries import.
        (f"import django.utils.functional\n{CALL}", [LOAD]),
        (f"with stagelens.request('batch'): {CALL}", ["internal batch - load"]),
        # A process with a server or requests.
        (f"import starlette\n{CALL}", []),
        (f"import django.core.handlers.wsgi\n{CALL}", []),
        (f"stagelens.request('batch')\n{CALL}", []),
        (f"import socket; server = socket.create_server(('127.0.0.1', 0))\n{CALL}", []),
    ],
)
def test_each_outermost_model_run_of_a_script_is_a_request(code: str, requests: list[str]) -> None:
    assert requests_of(SESSION + code) == requests


# Warm-ups, and what the process does after them.
WARM_UP = f"import stagelens, socket, os, signal{SESSION}for _ in range(3): {CALL}\n"
FORKED = """
import multiprocessing
listening, done = multiprocessing.Event(), multiprocessing.Event()
def serve():
    port = socket.create_server(("127.0.0.1", 0)) if {serves} else None
    listening.set()
    done.wait()
child = multiprocessing.get_context("fork").Process(target=serve)
child.start()
listening.wait()
stagelens.flush(30)
done.set()
child.join()
"""


@pytest.mark.parametrize(
    ("rest", "requests"),
    [
        ("", 3),
        ("os._exit(0)", 3),
        ("os.kill(os.getpid(), signal.SIGTERM)", 3),
        ("stagelens.flush(30); os.kill(os.getpid(), signal.SIGKILL)", 3),
        (FORKED.format(serves=False), 3),
        ("import starlette", 0),
        ("port = socket.create_server(('127.0.0.1', 0))", 0),
        ("with stagelens.request('batch'): pass", 1),
        (FORKED.format(serves=True), 0),
    ],
)
def test_calls_before_the_start_of_a_server_are_warm_ups(sink: Sink, tmp_path: Path, rest: str, requests: int) -> None:
    (tmp_path / "program.py").write_text(WARM_UP + rest)
    command = [sys.executable, "-m", "stagelens", "run", "--", sys.executable, "program.py"]
    subprocess.run(command, cwd=tmp_path, env=sink.environment(), check=False)

    assert sink.requests() == requests


def test_warm_ups_are_no_requests_of_an_unknown_server() -> None:
    serve = "import socket\nport = socket.create_server(('127.0.0.1', 0))\n"
    # The search for ports is not repeated at once.
    code = f"{REPORT}{SESSION}{CALL}\n{serve}from stagelens.instrumentors import scripts\nwhile scripts.on: {CALL}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "none of its requests is seen" in done.stderr


def test_each_thread_counts_its_outermost_modules_and_training_is_no_request() -> None:
    raised, *torch_requests = requests_of(TORCH)
    by_name = {name: [line for line in torch_requests if name in line] for name in ("Trained", "Failing", "Shared")}

    assert raised == "raised"
    assert sum(map(len, by_name.values())) == len(torch_requests)
    assert by_name == {
        "Trained": ["internal Trained - forward"] * 2,
        "Failing": ["internal Failing RuntimeError load"],
        "Shared": ["internal Shared - load", *["internal Shared - forward"] * 4],
    }


@pytest.mark.stacks
def test_generate_and_a_pipeline_are_one_request_each() -> None:
    code = """
from tests.instrumentors.libraries.tiny_models import llama, tokenizer
from transformers import pipeline
import torch
model = llama()
model.generate(torch.ones(1, 2, dtype=torch.long), max_new_tokens=3, do_sample=False)
words = pipeline("text-generation", model=model, tokenizer=tokenizer())
words(["word1", "word2"], max_new_tokens=2)
list(words((word for word in ["word1", "word2"]), max_new_tokens=2))
"""
    routes = [line.split()[1] for line in requests_of(code)]
    assert routes == ["LlamaForCausalLM", "TextGenerationPipeline", *["PipelineIterator"] * 2]
