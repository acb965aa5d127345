"""A KServe model server with one model."""

from __future__ import annotations

from kserve import ModelServer
from model import Sums

ModelServer(http_port=8000, enable_grpc=False, workers=1).start([Sums()])
