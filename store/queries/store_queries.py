"""Questions about the store itself: those a collector asks, which never needs pandas for them."""

from __future__ import annotations

from .. import collectors
from ..collectors import Report
from . import folds, state, storage
from .base import Questions
from .folds import Fold
from .state import StoreState
from .storage import Storage


class StoreQuestions(Questions):
    """How fresh and how large the store is, and who writes to it."""

    def state(self) -> StoreState:
        """Return how fresh and how large the store is."""
        with self._snapshot() as snapshot:
            return state.state(snapshot, self._retention, int(self._clock()))

    def storage(self) -> Storage:
        """Return what takes the store's room, and how large it will get."""
        with self._snapshot() as snapshot:
            return storage.storage(snapshot, self._retention, int(self._clock()))

    def collectors(self) -> list[Report]:
        """Return what each collector has said about itself last, by name."""
        with self._snapshot() as snapshot:
            return collectors.reports(snapshot.connection)

    def folds(self) -> list[Fold]:
        """Return where values of the last day were folded into `__other__`, by service."""
        with self._snapshot() as snapshot:
            return folds.folds(snapshot, self._caps, int(self._clock()))
