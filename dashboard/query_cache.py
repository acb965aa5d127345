"""Answers kept in memory while what they are about stays as it is, each worked out once however many ask."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Lock
from typing import Any

import pandas as pd

# What an answer that is no table is taken to need, or each of many in one: a histogram, what is said of one service. [bytes]
_SMALL = 10_000


@dataclass(slots=True)
class _Kept:
    """One answer, or the promise of it; its size in bytes is known when it is there."""

    revision: Hashable
    answer: Future[Any]
    size: int = _SMALL


class Answers:
    """A bounded memory of answers, those that nobody asked for longest forgotten first. Thread-safe.

    Args:
        most_bytes: How much all of them may need, by the size of their tables.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._lock = Lock()
        self._kept: OrderedDict[Hashable, _Kept] = OrderedDict()
        self._bytes = 0

    def get(self, question: Hashable, revision: Hashable, answer: Callable[[], Any]) -> Any:
        """Return what was answered to *question* at *revision*; what *answer* says where nobody asked before.

        Who asks while another works it out waits for that one. An error is raised to all who wait, and not kept.
        """
        with self._lock:
            kept = self._kept.get(question)
            known = kept is not None and kept.revision == revision
            if kept is None or not known:
                kept = _Kept(revision, Future())
                self._forget(question)
                self._kept[question] = kept
                self._bytes += kept.size
            self._kept.move_to_end(question)
        if not known:
            self._answer(question, kept, answer)
        return kept.answer.result()

    def _answer(self, question: Hashable, kept: _Kept, answer: Callable[[], Any]) -> None:
        try:
            found = answer()
        except BaseException as error:
            with self._lock:
                if self._kept.get(question) is kept:
                    self._forget(question)
            kept.answer.set_exception(error)
            raise
        with self._lock:
            if self._kept.get(question) is kept:
                grown = _size(found) - kept.size
                kept.size += grown
                self._bytes += grown
                while self._bytes > self._most_bytes and len(self._kept) > 1:
                    self._forget(next(iter(self._kept)))
        kept.answer.set_result(found)

    def _forget(self, question: Hashable) -> None:
        forgotten = self._kept.pop(question, None)
        self._bytes -= forgotten.size if forgotten else 0


def _size(found: object) -> int:
    if isinstance(found, pd.DataFrame):
        return _SMALL + int(found.memory_usage().sum())
    return _SMALL * max(len(found), 1) if isinstance(found, dict | list | tuple) else _SMALL  # pyright: ignore[reportUnknownArgumentType] - only their number matters
