"""A real Triton server, `make triton`'s, with the model beside the services, which traces every request to our collector."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from collections.abc import Generator, Iterable, Mapping
from pathlib import Path

BENCHMARKS = Path(__file__).parent.parent
# The tests start the same server.
sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.triton.triton_server import TritonServer, is_installed  # noqa: E402

__all__ = ["SERVICE", "is_installed", "serving"]

# What Triton calls itself.
SERVICE = "triton-inference-server"
# Two at a time, so that calls wait for each other as well; warm, for Triton does not tell its first calls from the others.
CONFIG = """\
backend: "python"
max_batch_size: 0
input [{ name: "SECONDS" data_type: TYPE_FP64 dims: [ 1 ] }]
output [{ name: "TIMES" data_type: TYPE_INT64 dims: [ 2 ] }]
instance_group [{ kind: KIND_CPU count: 2 }]
model_warmup [{
  name: "none", batch_size: 1, inputs { key: "SECONDS" value { data_type: TYPE_FP64 dims: 1 zero_data: true } }
}]
"""


@contextlib.contextmanager
def serving(models: Iterable[str], collector: str) -> Generator[Mapping[str, str]]:
    """Serve the model under each name of *models*, and yield the environment by which services find the server."""
    with tempfile.TemporaryDirectory() as folder:
        for model in models:
            version = Path(folder, model, "1")
            version.mkdir(parents=True)
            shutil.copy(BENCHMARKS / "services" / "triton_model.py", version / "model.py")
            (version.parent / "config.pbtxt").write_text(CONFIG)
        with TritonServer(f"{collector}/v1/traces", Path(folder)) as server:
            yield {"TRITON_HTTP_PORT": str(server.ports.http), "TRITON_GRPC_PORT": str(server.ports.grpc)}
