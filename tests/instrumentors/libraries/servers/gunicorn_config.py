"""Hooks of gunicorn: a worker reports when it handles signals, because gunicorn drops earlier ones."""

from __future__ import annotations

from typing import Any


def post_worker_init(worker: Any) -> None:
    worker.log.info("Worker is up")
