"""What gunicorn calls in a worker: it says so once it hears signals, for one that comes earlier is lost in gunicorn."""

from __future__ import annotations

from typing import Any


def post_worker_init(worker: Any) -> None:
    """Say that the worker is up."""
    worker.log.info("Worker is up")
