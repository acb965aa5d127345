"""Release that coincides with the onset of a latency regression."""

from __future__ import annotations

import pytest

from stagelens.alerts.regression.findings import release_at_onset
from stagelens.analysis.regression.policy import default_watch_policy


@pytest.mark.parametrize(
    ("released", "between", "version"),
    [
        # A block of ten minutes is slow although the release came 8 minutes after its start.
        (108, (90, 110), "2"),
        (108, (100, 100), ""),
        (61, (90, 110), "2"),
        (59, (90, 110), ""),
        (116, (90, 110), ""),
    ],
)
def test_a_release_while_it_may_have_begun_is_named(released: int, between: tuple[int, int], version: str) -> None:
    """A release from half an hour before the earliest onset to five minutes after the latest one is named."""
    assert release_at_onset(default_watch_policy(), {"1": 0, "2": released}, between) == version


def test_the_only_version_is_no_release() -> None:
    """Without an older version, no release is named."""
    assert release_at_onset(default_watch_policy(), {"1": 100}, (90, 110)) == ""
