"""Fixtures of the statistics, for the modules that read the store."""

from tests.analysis.regression.conftest import make_service, reference, service, three_days

__all__ = ["make_service", "reference", "service", "three_days"]
