"""Fixtures of the regression statistics, for modules that read the store, and the past of a service."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.alerts.simulated_services import Service, recorded
from tests.analysis.regression.conftest import make_service, reference, service, three_days

__all__ = ["make_service", "reference", "service", "three_days"]


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("history") / "stagelens.db"
    recorded(path, [(Service(), ())])
    return path
