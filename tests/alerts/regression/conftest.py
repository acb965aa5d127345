"""Fixtures of the regression statistics, for modules that read the store."""

from tests.analysis.regression.conftest import make_service, reference, service, three_days

__all__ = ["make_service", "reference", "service", "three_days"]
