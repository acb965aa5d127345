"""Service used by the documentation as `app:app`."""

from __future__ import annotations

from starlette.applications import Starlette

app = Starlette()
